"""Clock and power of a GPU while something is measured, as nvidia-smi samples them."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from threading import Thread
from time import perf_counter_ns

EVERY_MS = 50


@dataclass(slots=True)
class Clocks:
    """Samples so far: when by the host's clock, MHz of the SMs, W."""

    samples: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])

    def between(self, began_ns: int, ended_ns: int) -> tuple[float, float] | None:
        """Medians of MHz and W, ``None`` if there is no sample."""
        within = [sample for sample in self.samples if began_ns <= sample[0] <= ended_ns]
        if not within:
            return None
        return median(mhz for _, mhz, _ in within), median(watts for _, _, watts in within)

    def take(self, line: str) -> None:
        """Take note of a line; one that is no sample tells nothing."""
        with suppress(ValueError):
            mhz, watts = map(float, line.split(","))
            self.samples.append((perf_counter_ns(), mhz, watts))


@contextmanager
def sampled(index: int = 0) -> Generator[Clocks]:
    """Sample GPU ``index`` while within; where there is no nvidia-smi there are no samples."""
    clocks = Clocks()
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen([*query, f"--loop-ms={EVERY_MS}"], stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        yield clocks
        return
    assert process.stdout is not None
    lines = process.stdout
    reader = Thread(target=lambda: [clocks.take(line) for line in lines], daemon=True)
    reader.start()
    try:
        yield clocks
    finally:
        process.terminate()
        process.wait()
        reader.join()

"""A command as a process of its own: how long it took, how much memory it used, by the system's own account."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter, sleep

LOOKS_EVERY_S = 0.002
KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a process took.

    Attributes:
        wall_s: from its start to its end.
        seen_s: until what was waited for was there; ``None`` if it never was, or nothing was waited for.
        cpu_s: of all its threads and of the processes that it waited for, in user and system mode.
        peak_mib: the most memory that it had at one time.
        printed: on standard output.
    """

    wall_s: float
    seen_s: float | None
    cpu_s: float
    peak_mib: float
    printed: str


def spent_by(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    is_there: Callable[[], bool] | None = None,
) -> Spent:
    """Run a command and wait for its end.

    Args:
        folder: in which it runs.
        environment: besides that of this process.
        is_there: looked at every two milliseconds until it is true.

    Raises:
        SystemExit: the command failed.
    """
    with TemporaryFile("w+") as printed:
        began = perf_counter()
        process = subprocess.Popen(
            command, stdout=printed, cwd=folder, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL
        )
        seen_s = None
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        while is_there is not None and seen_s is None and not ended:
            sleep(LOOKS_EVERY_S)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            seen_s = perf_counter() - began if is_there() else None
        if not ended:
            _, status, usage = os.wait4(process.pid, 0)
        wall_s = perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read()
    if process.returncode:
        print(text, file=sys.stderr)
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}")
    return Spent(
        wall_s=wall_s,
        seen_s=seen_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / KIB_PER_MIB,
        printed=text,
    )

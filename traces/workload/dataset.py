"""Lengths drawn from the rows of a file, in pairs, whatever the file says of times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from traces.formats import read_entries

MOST_PAIRS = 2**20
"""Pairs kept in memory; of a longer file an even sample, the same each time."""

BLOCK = 1024
"""Pairs drawn at once: speed only."""


def load_pairs(path: Path, most: int = MOST_PAIRS) -> npt.NDArray[np.int64]:
    """Take (prompt, output) tokens of the rows that were served, (n_pairs, 2).

    Of more than ``most`` rows every one is kept with the same probability (reservoir sampling: Vitter, 1985).

    Raises:
        ValueError: a faulty row, or none that was served.
    """
    status = path.stat() if path.exists() else None
    return _pairs(path, most, None if status is None else (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=4)  # the same file is asked for once a model and system
def _pairs(path: Path, most: int, version: object) -> npt.NDArray[np.int64]:
    del version  # tells a file from what it was before
    kept: list[tuple[int, int]] = []
    chosen = np.random.default_rng([*b"pairs"])
    n_served = 0
    for entry in read_entries(path):
        if entry.is_failed:
            continue
        n_served += 1
        if len(kept) < most:
            kept.append((entry.n_prompt, entry.n_output))
        elif (place := int(chosen.integers(n_served))) < most:
            kept[place] = entry.n_prompt, entry.n_output
    if not kept:
        raise ValueError(f"{path}: no row has both prompt and output tokens; choose other lengths")
    return np.array(kept, np.int64)


def drawn_pairs(pairs: npt.NDArray[np.int64], rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Draw pairs with replacement, without end."""
    while True:
        prompts, outputs = pairs[rng.integers(len(pairs), size=BLOCK)].T.tolist()
        yield from zip(prompts, outputs, strict=True)

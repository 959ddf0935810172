"""Sorts what does not fit into memory: sorted runs on disk, then merged."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from heapq import merge
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

T = TypeVar("T")

RUN = 2**19
"""Weight sorted in memory at once: some 100 MB, whether of short entries or of pieces of prompts."""


def of_one(item: object) -> int:
    """Weigh every item the same."""
    del item
    return 1


def externally_sorted(
    items: Iterable[T], key: Callable[[T], int], *, weight: Callable[[T], int] = of_one, run: int = RUN
) -> Iterator[T]:
    """Sort by ``key``; items of equal keys keep their order.

    Args:
        items: read to the end before the first comes out.
        weight: of an item, at least 1; items of a weight of ``run`` and one more are in memory at most.
    """
    with ExitStack() as files:
        runs: list[Iterator[T]] = []
        held: list[T] = []
        n_held = 0
        for item in items:
            held.append(item)
            n_held += weight(item)
            if n_held >= run:
                runs.append(_spilled(sorted(held, key=key), files.enter_context(TemporaryFile())))
                held, n_held = [], 0
        yield from merge(*runs, sorted(held, key=key), key=key)


def _spilled(run: Sequence[T], file: IO[bytes]) -> Iterator[T]:
    for item in run:
        pickle.dump(item, file, pickle.HIGHEST_PROTOCOL)
    file.seek(0)
    return _read(file, len(run))


def _read(file: IO[bytes], n_items: int) -> Iterator[Any]:
    for _ in range(n_items):
        yield pickle.load(file)  # written above, by nobody else

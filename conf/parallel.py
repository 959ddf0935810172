"""Tasks side by side in processes, results in order."""

# joblib comes without type information; this file is the only one that talks to it.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(task: Callable[[Item], Result], items: Iterable[Item], n_jobs: int) -> Iterator[Result]:
    """Apply the task to every item, ``n_jobs`` at a time; give the results in the order of the items."""
    from joblib import Parallel, delayed

    waiting = (delayed(task)(item) for item in items)
    yield from cast("Iterator[Result]", Parallel(n_jobs=n_jobs, return_as="generator")(waiting))

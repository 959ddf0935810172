"""Tasks side by side, results in order: in processes, in threads, or on a cluster.

joblib hands the tasks out; a task is a function and an argument that can be pickled.
"""

# joblib comes without type information; what is inferred from its defaults is too narrow.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false
from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, TypeVar, cast

Item = TypeVar("Item")
Result = TypeVar("Result")

CLUSTERS = {"dask": ("distributed", "cluster"), "ray": ("ray", "ray")}
"""For each kind of cluster the package that it needs, and the extra of this project that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Who carries out tasks, and how many at a time.

    Attributes:
        backend: ``loky``: processes on this machine. ``threading``: threads of this process, for a debugger or a
            profiler. ``dask``, ``ray``: a cluster.
        jobs: tasks at a time on this machine; ``None``: as many as there are cores. A cluster at an address
            takes what it has room for.
        address: of a cluster that is there; ``None`` starts one on this machine.

    Raises:
        ValueError: a number out of range, or an address without effect.
    """

    backend: Literal["loky", "threading", "dask", "ray"] = "loky"
    jobs: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"parallel.jobs={self.jobs} must be at least 1, or null for all cores")
        if self.address is not None and self.backend not in CLUSTERS:
            raise ValueError(f"parallel.address has no effect with parallel.backend={self.backend}; choose dask or ray")

    def require_installed(self) -> None:
        """Refuse a cluster whose package is not there.

        Raises:
            ValueError: it has to be installed.
        """
        package, extra = CLUSTERS.get(self.backend, (None, ""))
        if package is not None and find_spec(package) is None:
            mend = f'pip install "hbmlab[{extra}]"'
            raise ValueError(f"parallel.backend={self.backend} needs the package {package}, which is not here; {mend}")


def side_by_side(task: Callable[[Item], Result], items: Sequence[Item], how: Parallel) -> Iterator[Result]:
    """Apply the task to every item; give the results in the order of the items.

    With ``loky`` the first item is done in this process, at once: another one takes half a second to start.

    Raises:
        Refused: there is no cluster at the address.
    """
    if not items:
        return
    if how.backend in CLUSTERS:
        from conf.cluster import cluster

        with cluster(how, _n_jobs(how, items)):
            yield from _started(task, items, how)
    elif len(items) == 1 or how.jobs == 1:
        yield from map(task, items)
    else:
        results = _started(task, items[1:], how)
        try:
            first = task(items[0])
        except BaseException as error:
            results.throw(error)  # ends the processes and raises it again
            raise
        yield first
        yield from results


def _started(task: Callable[[Item], Result], items: Sequence[Item], how: Parallel) -> Generator[Result]:
    """Have joblib start the tasks; the results come as they are asked for."""
    import joblib

    return_as = "list" if how.backend == "ray" else "generator"  # Ray's backend knows no other
    with joblib.parallel_config(how.backend, n_jobs=_n_jobs(how, items)), deaf_to_interrupts():  # while processes start
        run = joblib.Parallel(batch_size=1, return_as=return_as)
        results = run(joblib.delayed(task)(item) for item in items)
    return cast("Generator[Result]", results)


def _n_jobs(how: Parallel, items: Sequence[object]) -> int:
    import joblib

    if how.address is not None:
        return -1  # all that the cluster has
    return max(2, min(how.jobs or joblib.cpu_count(), len(items)))  # for 1 joblib would start no process


@contextmanager
def deaf_to_interrupts() -> Generator[None]:
    """Let processes that start here never see Ctrl-C, which a terminal sends to all: this one sees it and ends them."""
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # which would take the mask off again (Python 3.11)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

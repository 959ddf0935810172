"""Clusters that joblib can hand tasks to: Dask and Ray, there already or started on this machine."""

# distributed and ray are optional, and come with little type information.
# pyright: reportMissingTypeStubs=false, reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from conf.cli import Refused
from conf.parallel import Parallel, deaf_to_interrupts

CONNECT_S = 10
"""How long a cluster may take to answer."""


@contextmanager
def cluster(how: Parallel, n_jobs: int) -> Generator[None]:
    """Be connected to a cluster until the block ends.

    Args:
        n_jobs: tasks at a time, for one that is started here.

    Raises:
        Refused: there is none at the address.
    """
    try:
        connection = _dask(how.address, n_jobs) if how.backend == "dask" else _ray(how.address, n_jobs)
    except OSError as error:
        mend = "start its scheduler, or leave the address out to start a cluster here"
        raise Refused(f"parallel.address={how.address}: no {how.backend} cluster ({error}); {mend}") from None
    with connection:
        yield


def _dask(address: str | None, n_jobs: int) -> AbstractContextManager[object]:
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it tells at length of each connection that ends
    if address is not None:
        return Client(address, timeout=CONNECT_S)
    with deaf_to_interrupts():
        # A task is Python code: a worker with several threads would carry out one at a time all the same.
        return Client(n_workers=n_jobs, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL)


def _ray(address: str | None, n_jobs: int) -> AbstractContextManager[object]:
    import ray
    from ray.util.joblib import register_ray

    register_ray()
    if address is not None:
        return ray.init(address, logging_level=logging.ERROR)
    return ray.init(num_cpus=n_jobs, include_dashboard=False, logging_level=logging.ERROR)

"""Sums over the ranks, through torch.distributed: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

NCCL_SETTINGS = {
    "NCCL_NVLS_ENABLE": "0",  # sums through NVLink multicast need more of the driver than every machine grants
    "NCCL_GRAPH_REGISTER": "0",  # captured sums read buffers of their own, which may be freed before the graph
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # torch would end the process; here a lost rank is an error like others
}
"""NCCL and its process group can only be told by the environment. What is set already stays."""


class Group(Protocol):
    """The ranks of one model, which all call the same in the same order."""

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks, the same bits on each; on a GPU on its current stream.

        Raises:
            RuntimeError: a rank is gone, or did not come in time.
        """
        ...

    def abort(self) -> None:
        """Let sums that are under way end, whatever becomes of them; there can be no others."""
        ...


class TorchGroup:
    """A process group of torch, not the default one: nothing global is set up.

    Args:
        store: a file through which the ranks find each other, in a folder that all see.
        device: torch's name of this rank's device.
        timeout_s: for how long one waits for the others.

    Raises:
        RuntimeError: a rank did not come in time.
    """

    def __init__(self, store: Path, rank: int, n_ranks: int, device: str, timeout_s: float) -> None:
        timeout = timedelta(seconds=timeout_s)
        meeting: Any = dist.FileStore(str(store), n_ranks)  # pyright: ignore[reportPrivateImportUsage] - documented
        meeting.set_timeout(timeout)
        kind = torch.device(device).type
        open_group = _nccl if kind == "cuda" else _gloo
        self._group = open_group(meeting, rank, n_ranks, timeout)
        self._options = dist.AllreduceOptions()
        self._options.asyncOp = False
        self._is_aborted = False
        self.sum(torch.zeros(1, device=device))  # connects, which must not happen while a graph is captured
        if kind == "cuda":
            torch.cuda.synchronize(device)

    def sum(self, tensor: Tensor) -> None:
        """Sum up in place."""
        work = self._group.allreduce([tensor], self._options)
        if work is not None:
            work.wait()

    def abort(self) -> None:
        """End what is under way on the device.

        NCCL tells the device at once, then waits until every graph that holds a sum is gone: in a thread of its own,
        for the graphs go later. (Source: NCCL 2.28, src/init.cc, ``commDestroySync``.)
        """
        if isinstance(self._group, dist.ProcessGroupGloo) or self._is_aborted:
            return  # gloo: each sum is waited for, and ends with its connection
        self._is_aborted = True
        Thread(target=self._group.abort, daemon=True).start()


def _gloo(store: Any, rank: int, n_ranks: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, n_ranks, timeout)


def _nccl(store: Any, rank: int, n_ranks: int, timeout: timedelta) -> Any:
    for name, value in NCCL_SETTINGS.items():
        os.environ.setdefault(name, value)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, n_ranks, options)

"""What surrounds every use of a device: failures told in a line, and torch kept to its share of the memory."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

import torch

from executor.vmm.driver import Driver, DriverError
from policies.errors import DeviceFailed
from policies.types import GIB

GRAPHS_BYTES = 2 * GIB
"""Pools and workspaces of a model's CUDA graphs, beside what the ledger divides: vLLM, too, captures its graphs beyond
``gpu_memory_utilization``.

Source: docs/measured/h200_prefill.json, 0.5 GiB for OPT-13b, 0.6 for Llama-3-8b: prefill graphs alone. Decode graphs
and cuBLAS's workspaces are estimated.
"""


@contextmanager
def told_in_a_line() -> Generator[None]:
    """Turn what only a broken device, or one too small, does into one line."""
    try:
        yield
    except torch.OutOfMemoryError as refused:
        line = str(refused).splitlines()[0]
        raise DeviceFailed(f"{line}; raise activation_bytes in the mix, or lower max_num_batched_tokens") from refused
    except (DriverError, torch.AcceleratorError) as failure:
        line = str(failure).splitlines()[0]
        raise DeviceFailed(f"the driver failed, the run cannot go on: {line}") from failure


@contextmanager
def torch_bound(driver: Driver, n_bytes: int, n_models: int) -> Generator[None]:
    """Keep torch to what the ledger gives it.

    On a GPU its allocator gets the memory that no page is made of, and ``GRAPHS_BYTES`` a model. On a CPU it gets one
    thread: tiny steps lose more by waiting for threads than they gain, and what they compute does not depend on how
    many cores there are.
    """
    device = torch.device(driver.device)
    if device.type != "cuda":
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(n_threads)
        return
    gc.collect()  # what a run before has left
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    bound = n_bytes + n_models * GRAPHS_BYTES
    torch.cuda.set_per_process_memory_fraction(min(1.0, bound / total), device)
    yield

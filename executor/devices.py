"""The devices that an executor can run on, and what a person must know who has none."""

from __future__ import annotations

import platform
import re
from math import inf
from pathlib import Path
from typing import Literal

import torch

from executor.vmm.driver import Driver, DriverError
from executor.vmm.memfd import MemfdDriver
from policies.types import GIB, HardwareProfile

World = Literal["memfd", "cuda"]

CGROUP = Path("/sys/fs/cgroup/memory.max")
MEMINFO = Path("/proc/meminfo")
VIRTIO = Path("/sys/bus/virtio/drivers")


def open_driver(world: World, hardware: HardwareProfile, index: int = 0) -> Driver:
    """Open the device of a world; of several GPUs the one of this index.

    Raises:
        ValueError: this machine has no such device, or it cannot do what is needed.
    """
    if world == "memfd":
        return MemfdDriver(hardware.hbm_bytes, hardware.page_bytes)
    return _open_cuda(hardware, index)


def open_peer(world: World, hardware: HardwareProfile, index: int, reader: int = 0) -> Driver:
    """Open the device in whose memory master copies are kept; on a CPU one like the first stands in.

    Open it while the reader is open.

    Args:
        index: which GPU, as the driver counts them.
        reader: which GPU fetches from it.

    Raises:
        ValueError: there is no such device, or the reader cannot reach its memory.
    """
    if world == "memfd":
        return MemfdDriver(hardware.hbm_bytes, hardware.page_bytes)
    from executor.vmm.cuda import CudaDriver, NoGpu

    try:
        return CudaDriver(index, readers=(reader,))
    except NoGpu as missing:
        raise ValueError(f"backend.peer={index}: {missing}; name another GPU, or set backend.tier=host") from None


def refuse_too_little_peer_memory(world: World, hardware: HardwareProfile, index: int, n_bytes: int) -> None:
    """See to it that a peer can hold master copies before it is asked to.

    Raises:
        ValueError: it has less than ``n_bytes``.
    """
    free = hardware.hbm_bytes if world == "memfd" else torch.cuda.mem_get_info(index)[0]
    if n_bytes > free:
        raise ValueError(
            f"backend.peer={index}: master copies need {n_bytes / GIB:.2f} GiB of its memory, {free / GIB:.2f} GiB are "
            "free; serve fewer or smaller models, name another GPU, or set backend.tier=host"
        )


def describe(world: World) -> str:
    """Name the device, its driver and what computes on it."""
    if world == "memfd":
        return f"{platform.machine()} CPU, memfd (torch {torch.__version__})"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, driver {_driver_version()} (torch {torch.__version__})"


def refuse_too_little_host_memory(n_bytes: int) -> None:
    """See to it that host memory can be pinned before it is.

    Raises:
        ValueError: less than ``n_bytes`` are there.
    """
    available = _available_bytes()
    if n_bytes > available:
        raise ValueError(
            f"{n_bytes / GIB:.1f} GiB of host memory have to be pinned for master copies and swapped KV, "
            f"{available / GIB:.1f} GiB are available; serve fewer or smaller models, or lower serving.swap_space_bytes"
        )


def _available_bytes() -> float:
    """Host memory that this process may still take, as far as can be known: its control group's or the machine's.

    A virtual machine may be given memory only as it is used; then the driver has to say what there is.
    """
    if CGROUP.is_file() and (limit := CGROUP.read_text().strip()) != "max":
        return int(limit)
    if any(VIRTIO.glob("virtio_balloon/virtio*")) or any(VIRTIO.glob("virtio_mem/virtio*")):
        return inf
    lines = MEMINFO.read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return kib * 1024


def _open_cuda(hardware: HardwareProfile, index: int) -> Driver:
    mend = "run with backend=memfd, or on a machine with an NVIDIA GPU (python -m executor doctor)"
    if torch.version.cuda is None:
        raise ValueError(f"backend.world=cuda: this torch ({torch.__version__}) was built without CUDA; {mend}")
    try:
        from executor.vmm.cuda import CudaDriver, NoGpu
    except ImportError as missing:
        raise ValueError(f'backend.world=cuda needs cuda-python ({missing}); pip install "hbmlab[executor]"') from None
    try:
        driver = CudaDriver(index)
    except NoGpu as missing:
        raise ValueError(f"backend.world=cuda: {missing}; {mend}") from None
    except DriverError as refused:  # too old for cuda-python, or a GPU without virtual memory management
        raise ValueError(f"backend.world=cuda: {refused}; it needs a newer driver or GPU: {mend}") from None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as refused:
        raise ValueError(f"backend.world=cuda: torch refuses this driver: {' '.join(str(refused).split())}") from None
    total = torch.cuda.get_device_properties(index).total_memory
    if hardware.hbm_bytes > total:
        raise ValueError(
            f"hardware {hardware.name} has {hardware.hbm_bytes / GIB:.1f} GiB of HBM, this GPU {total / GIB:.1f} GiB; "
            "choose another hardware, or set hardware.hbm_bytes"
        )
    return driver


def _driver_version() -> str:
    """The version of the kernel driver, as NVIDIA counts."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", path.read_text()) if path.is_file() else None
    return found[1] if found else "of unknown version"

"""``python -m executor doctor``: what this machine can run, what is missing, and the mend, a line each.

Nothing here is imported before it is asked for, so that a machine without any of it is told what it lacks.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from executor.vmm.driver import DriverError

NOTHING_RUNS = 1

MIN_PYTHON = (3, 11)
MIN_CUDA = 13_000
"""CUDA 13.0, as the driver counts. Source: cuda-python 13 needs a driver of that version or later."""

MIN_DISK_BYTES = 2**30
"""Results of a day's experiments: some 100 MB an hour of requests."""

GIB = 2**30
INSTALL = 'pip install "hbmlab[executor]"'


class State(Enum):
    """How a check came out."""

    OK = "ok"
    MISSING = "missing"
    OPTIONAL = "not there"


class World(Enum):
    """What a check is about; a world runs if nothing that it needs is missing."""

    ANY = "both"
    CPU = "memfd"
    GPU = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line.

    Attributes:
        mend: what to do about it; empty where there is nothing to do.
    """

    what: str
    world: World
    state: State
    found: str
    mend: str = ""

    @property
    def line(self) -> str:
        """For a person."""
        return f"{self.state.value:9}  {self.what:14} {self.found}{f'; {self.mend}' if self.mend else ''}"


def main(arguments: Sequence[str]) -> int:
    """Carry out ``doctor``; 0 if this machine can run something."""
    ArgumentParser(description=__doc__).parse_args(arguments)
    findings = examine()
    for finding in findings:
        print(finding.line)
    print()
    can = {world: can_run(world, findings) for world in (World.CPU, World.GPU)}
    print(f"backend=memfd (CPU, real mappings): {_verdict(can[World.CPU], '+experiment=exec_tiny')}")
    print(f"backend=cuda (GPU): {_verdict(can[World.GPU], '+experiment=exec_single')}")
    return 0 if any(can.values()) else NOTHING_RUNS


def examine() -> list[Finding]:
    """Look at everything. One thing that is not there keeps nothing else from being looked at."""
    findings = [check() for check in (python, torch_found, safetensors, memfd, host_memory, disk)]
    findings += [cuda_bindings(), *gpu(), triton()]
    return findings


def can_run(world: World, findings: Sequence[Finding]) -> bool:
    """Whether nothing is missing that a world needs."""
    needed = [finding for finding in findings if finding.world in (World.ANY, world)]
    return all(finding.state is not State.MISSING for finding in needed)


def python() -> Finding:
    """The interpreter."""
    is_new = sys.version_info[:2] >= MIN_PYTHON
    return Finding(
        what="Python",
        world=World.ANY,
        state=State.OK if is_new else State.MISSING,
        found=platform.python_version(),
        mend="" if is_new else "install Python 3.11 or later",
    )


def torch_found() -> Finding:
    """PyTorch, with or without CUDA."""
    if find_spec("torch") is None:
        return Finding(what="torch", world=World.ANY, state=State.MISSING, found="not installed", mend=INSTALL)
    torch: Any = import_module("torch")
    built_for = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs alone"
    return Finding(what="torch", world=World.ANY, state=State.OK, found=f"{torch.__version__}, built {built_for}")


def safetensors() -> Finding:
    """What reads weights; random ones need none."""
    return _package("safetensors", World.ANY, "weights from files", INSTALL)


def memfd() -> Finding:
    """Files in RAM, of which the CPU's device is made."""
    if not hasattr(os, "memfd_create"):
        return Finding(
            what="memfd",
            world=World.CPU,
            state=State.MISSING,
            found=f"{platform.system()} has no memfd_create",
            mend="run on Linux, or in a Linux container",
        )
    try:
        os.close(os.memfd_create("doctor"))
    except OSError as refused:
        mend = "let the sandbox allow memfd_create"
        return Finding(what="memfd", world=World.CPU, state=State.MISSING, found=f"refused: {refused}", mend=mend)
    return Finding(
        what="memfd", world=World.CPU, state=State.OK, found=f"there, pages of {os.sysconf('SC_PAGE_SIZE')} bytes"
    )


def host_memory() -> Finding:
    """Memory from which master copies are pinned, and how much of it may be locked."""
    available, locked = _available_bytes(), _lockable()
    if available is None:
        found = "how much there is cannot be read"
        return Finding(what="host memory", world=World.ANY, state=State.OPTIONAL, found=found, mend="see free -h")
    return Finding(
        what="host memory",
        world=World.ANY,
        state=State.OK,
        found=f"{available / GIB:.1f} GiB available; this user may lock {locked}, CUDA what there is",
    )


def disk() -> Finding:
    """Room for results."""
    free = shutil.disk_usage(Path.cwd()).free
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()):
            pass
    except OSError as refused:
        found, mend = f"{Path.cwd()} cannot be written ({refused.strerror})", "give output.root=FOLDER"
        return Finding(what="disk", world=World.ANY, state=State.OPTIONAL, found=found, mend=mend)
    mend = "" if free >= MIN_DISK_BYTES else "give output.root=FOLDER on a larger disk"
    state = State.OPTIONAL if mend else State.OK
    return Finding(
        what="disk", world=World.ANY, state=state, found=f"{free / GIB:.1f} GiB free here for results", mend=mend
    )


def cuda_bindings() -> Finding:
    """The Python side of the CUDA driver."""
    if _has("cuda.bindings.driver"):
        found = f"cuda-bindings {_version('cuda-bindings')}"
        return Finding(what="cuda-python", world=World.GPU, state=State.OK, found=found)
    return Finding(what="cuda-python", world=World.GPU, state=State.MISSING, found="not installed", mend=INSTALL)


def gpu() -> list[Finding]:
    """Driver, device, virtual memory management, HBM, and torch's view of them."""
    if not _has("cuda.bindings.driver"):
        return [_no_gpu("not looked for without cuda-python")]
    cuda: Any = import_module("cuda.bindings.driver")
    try:
        (code,) = cuda.cuInit(0)
    except RuntimeError:  # cuda.pathfinder's DynamicLibNotFoundError is one
        return [_no_gpu("no CUDA driver")]
    if code != cuda.CUresult.CUDA_SUCCESS:
        return [_no_gpu(f"the driver finds no GPU ({code.name})")]
    return [_driver(cuda), _vmm(cuda), _hbm(cuda), _peers(cuda), _pinning(), _torch_cuda()]


def triton() -> Finding:
    """The kernels of paged attention."""
    return _package("triton", World.GPU, "paged attention on a GPU", "pip install triton")


def _driver(cuda: Any) -> Finding:
    number = int(cuda.cuDriverGetVersion()[1])
    name = cuda.cuDeviceGetName(128, 0)[1].decode().rstrip("\0")
    found = f"{name}, driver for CUDA {number // 1000}.{number % 1000 // 10}"
    is_new = number >= MIN_CUDA
    mend = "" if is_new else f"install a driver for CUDA {MIN_CUDA // 1000}.{MIN_CUDA % 1000 // 10} or later"
    return Finding(what="GPU", world=World.GPU, state=State.OK if is_new else State.MISSING, found=found, mend=mend)


def _vmm(cuda: Any) -> Finding:
    attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    if not int(cuda.cuDeviceGetAttribute(attribute, 0)[1]):
        found, mend = "this GPU has no virtual memory management", "use one of the Pascal generation or later, on Linux"
        return Finding(what="VMM", world=World.GPU, state=State.MISSING, found=found, mend=mend)
    try:
        driver = import_module("executor.vmm.cuda").CudaDriver()
    except DriverError as refused:
        return Finding(
            what="VMM", world=World.GPU, state=State.MISSING, found=f"refused: {refused}", mend="see nvidia-smi"
        )
    page_bytes = driver.granularity_bytes
    driver.close()
    return Finding(what="VMM", world=World.GPU, state=State.OK, found=f"supported, pages of {page_bytes} bytes")


def _hbm(cuda: Any) -> Finding:
    total = int(cuda.cuDeviceTotalMem(0)[1])
    return Finding(what="HBM", world=World.GPU, state=State.OK, found=f"{total / GIB:.1f} GiB")


def _peers(cuda: Any) -> Finding:
    """Further GPUs, whose memory the first can reach."""
    others = range(1, int(cuda.cuDeviceGetCount()[1]))
    reachable = [index for index in others if int(cuda.cuDeviceCanAccessPeer(0, index)[1])]
    if not reachable:
        found, mend = "GPU 0 reaches the memory of no other", "for backend.tier=peer use a machine with two, linked"
        return Finding(what="peers", world=World.GPU, state=State.OPTIONAL, found=found, mend=mend)
    found = f"GPU 0 reaches the memory of {', '.join(map(str, reachable))}: backend.tier=peer can use them"
    return Finding(what="peers", world=World.GPU, state=State.OK, found=found)


def _pinning() -> Finding:
    """Pin a little: what the control group forbids shows up only then."""
    torch: Any = import_module("torch")
    try:
        torch.empty(2**20, dtype=torch.uint8, pin_memory=True)
    except (RuntimeError, AssertionError) as refused:
        line = str(refused).splitlines()[0]
        mend = "raise the memory limit of the container, or use a torch with CUDA"
        return Finding(what="pinning", world=World.GPU, state=State.MISSING, found=f"refused: {line}", mend=mend)
    return Finding(what="pinning", world=World.GPU, state=State.OK, found="host memory can be pinned")


def _torch_cuda() -> Finding:
    torch: Any = import_module("torch")
    if torch.cuda.is_available():
        found = f"computes on it (CUDA {torch.version.cuda}, compute capability {torch.cuda.get_device_capability()})"
        return Finding(what="torch on GPU", world=World.GPU, state=State.OK, found=found)
    return Finding(
        what="torch on GPU",
        world=World.GPU,
        state=State.MISSING,
        found=f"torch {torch.__version__} sees no GPU",
        mend="install a torch that is built for this driver's CUDA",
    )


def _no_gpu(found: str) -> Finding:
    mend = "on a machine with an NVIDIA GPU install its driver; without one use backend=memfd and python -m sim"
    return Finding(what="GPU", world=World.GPU, state=State.MISSING, found=found, mend=mend)


def _package(name: str, world: World, purpose: str, mend: str) -> Finding:
    if _has(name):
        return Finding(what=name, world=world, state=State.OK, found=f"{_version(name)}, {purpose}")
    return Finding(what=name, world=world, state=State.MISSING, found=f"not installed: {purpose}", mend=mend)


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent
        return False


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def _available_bytes() -> int | None:
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _lockable() -> str:
    if find_spec("resource") is None:
        return "an unknown part"
    resource: Any = import_module("resource")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "all" if soft == resource.RLIM_INFINITY else f"{soft / GIB:.2f} GiB"


def _verdict(can: bool, example: str) -> str:
    return f"can run: python -m executor run {example}" if can else "cannot run, see what is missing above"

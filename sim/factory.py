"""The simulated world, made from a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from policies.backend import Backend
from policies.serving.tenancy import Mig, Mps, Sharing
from policies.types import HardwareProfile, ModelShape
from sim.backend import SimBackend
from sim.compute.base import ComputeModel
from sim.compute.op_table import op_table
from sim.compute.perturbed import Perturbed
from sim.compute.profile import profiled
from sim.compute.roofline import ModelRoofline, Roofline
from sim.compute.table import TableModel
from sim.side_by_side.backend import SideBySideBackend
from sim.side_by_side.demands import RooflineDemand, SliceDemand
from sim.side_by_side.device import SharedDevice, SlicedDevice
from sim.vmm import VmmCost, VmmMode
from traces.measured.device_tables import read_table
from traces.measured.layer_profile import is_layer_profile, read_layer_profile
from traces.measured.op_latencies import OpLatencies
from traces.results.copies import CopyLog

MILLION = 10**6


def open_backend(
    shapes: Sequence[ModelShape],
    hardware: HardwareProfile,
    *,
    roofline: Mapping[str, float],
    flops_per_s: int,
    tables: Path | None = None,
    ops_gpu: str | None = None,
    vmm: Mapping[str, int],
    vmm_mode: str,
    compute_slowdown: float,
    copy_slowdown: float = 0.0,
    prefill_slowdowns: tuple[float | None, float | None] = (None, None),
    compute_deviation: float = 0.0,
    seed: int = 0,
    copies: CopyLog | None = None,
    sharing: Sharing | None = None,
) -> Backend:
    """Make a simulated GPU that serves these models.

    Args:
        sharing: how they share it; ``None``: in turns.
        roofline, flops_per_s: fitted constants, see ``Roofline``.
        tables: folder of measured compute times, or of a layer profile, taken in their place.
        ops_gpu: GPU whose operations aiconfigurator-core measured: see ``sim/compute/op_table.py``.
        vmm: driver costs, see ``VmmCost``; ``vmm_mode`` says which apply.
        compute_slowdown, copy_slowdown: share by which computation takes longer beside a copy, and the copy.
        prefill_slowdowns: both in steps with prompts, ``None``: as in other steps.
        compute_deviation: by how much compute times are off, drawn by ``seed``: see ``Perturbed``.
        copies: takes note of what crosses the link.

    Raises:
        ValueError: a constant is out of range, or a model was not measured.
    """
    if isinstance(sharing, Mps | Mig):
        rooflines = [
            ModelRoofline(_part(sharing, index, hardware, roofline, flops_per_s), shape)
            for index, shape in enumerate(shapes)
        ]
        return SideBySideBackend(
            shapes,
            hardware,
            _perturbed(rooflines, compute_deviation, seed),
            [SliceDemand() if isinstance(sharing, Mig) else RooflineDemand(model) for model in rooflines],
            SlicedDevice() if isinstance(sharing, Mig) else SharedDevice(round(sharing.interference * MILLION)),
            vmm=VmmCost(**vmm),
            vmm_mode=VmmMode(vmm_mode),
            slowdown_ppm=round(compute_slowdown * MILLION),
            copy_slowdown_ppm=round(copy_slowdown * MILLION),
            copies=copies,
        )
    computes = compute_models(
        shapes, hardware, roofline=roofline, flops_per_s=flops_per_s, tables=tables, ops_gpu=ops_gpu
    )
    return SimBackend(
        shapes,
        hardware,
        _perturbed(computes, compute_deviation, seed),
        vmm=VmmCost(**vmm),
        vmm_mode=VmmMode(vmm_mode),
        slowdown_ppm=round(compute_slowdown * MILLION),
        copy_slowdown_ppm=round(copy_slowdown * MILLION),
        prefill_slowdowns_ppm=(_in_millionths(prefill_slowdowns[0]), _in_millionths(prefill_slowdowns[1])),
        copies=copies,
    )


def _in_millionths(share: float | None) -> int | None:
    return None if share is None else round(share * MILLION)


def _perturbed(computes: Sequence[ComputeModel], deviation: float, seed: int) -> Sequence[ComputeModel]:
    if not deviation:
        return computes
    return [Perturbed(model, deviation, f"compute {seed} {index}") for index, model in enumerate(computes)]


def _part(
    sharing: Mps | Mig, model: int, hardware: HardwareProfile, roofline: Mapping[str, float], flops_per_s: int
) -> Roofline:
    """The machine that a model has while it is alone."""
    rates = hardware.hbm_bytes_per_s, flops_per_s
    if isinstance(sharing, Mig):
        rates = sharing.part(rates[0], model), sharing.part(rates[1], model)
    return Roofline(hbm_bytes_per_s=rates[0], flops_per_s=rates[1], **roofline)


def compute_models(
    shapes: Sequence[ModelShape],
    hardware: HardwareProfile,
    *,
    roofline: Mapping[str, float],
    flops_per_s: int,
    tables: Path | None,
    ops_gpu: str | None = None,
) -> list[ComputeModel]:
    """Make the source of compute times of each model: see ``open_backend``.

    Raises:
        ValueError: a constant is out of range, or a model was not measured.
    """
    machine = Roofline(hbm_bytes_per_s=hardware.hbm_bytes_per_s, flops_per_s=flops_per_s, **roofline)
    if ops_gpu is not None:
        return [_of_operations(ops_gpu, machine, shape) for shape in shapes]
    if tables is None:
        return [ModelRoofline(machine, shape) for shape in shapes]
    if is_layer_profile(tables):
        return [profiled(read_layer_profile(tables, 1), shape) for shape in shapes]
    return [TableModel(read_table(tables, shape)) for shape in shapes]


@cache
def _of_operations(gpu: str, machine: Roofline, shape: ModelShape) -> ComputeModel:
    """The table takes a second to put together, and serves every run of a process."""
    return TableModel(op_table(shape, machine, OpLatencies.of(gpu)))

"""The simulated world, made from a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.types import HardwareProfile, ModelShape
from sim.backend import SimBackend
from sim.compute.roofline import ModelRoofline, Roofline
from sim.vmm import VmmCost, VmmMode

MILLION = 10**6


def open_backend(
    shapes: Sequence[ModelShape],
    hardware: HardwareProfile,
    *,
    roofline: Mapping[str, float],
    flops_per_s: int,
    vmm: Mapping[str, int],
    vmm_mode: str,
    compute_slowdown: float,
) -> SimBackend:
    """Make a simulated GPU that serves these models.

    Args:
        roofline, flops_per_s: fitted constants, see ``Roofline``.
        vmm: driver costs, see ``VmmCost``; ``vmm_mode`` says which apply.
        compute_slowdown: share by which computation takes longer beside a copy.

    Raises:
        ValueError: a constant is out of range.
    """
    machine = Roofline(hbm_bytes_per_s=hardware.hbm_bytes_per_s, flops_per_s=flops_per_s, **roofline)
    return SimBackend(
        shapes,
        hardware,
        [ModelRoofline(machine, shape) for shape in shapes],
        vmm=VmmCost(**vmm),
        vmm_mode=VmmMode(vmm_mode),
        slowdown_ppm=round(compute_slowdown * MILLION),
    )

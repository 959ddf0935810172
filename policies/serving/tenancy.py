"""How several models share one GPU: the settings. In time ``turns`` chooses by them, in space ``side_by_side`` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policies.types import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalSharing:
    """One model at a time, in turns of a quantum; never idle while a model has work.

    A turn ends with the first step that ends at or after its quantum, if another model
    has work, or when the model has none. ``round_robin`` goes on to the next model with
    work in their order; ``priority`` takes the one with the highest priority (ties: the
    next in order). The paper leaves quantum and order open (docs/decisions.md).

    Raises:
        ValueError: the quantum is not positive, or priorities are missing.
    """

    quantum_s: float
    order: Literal["round_robin", "priority"] = "round_robin"
    priorities: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.quantum_s > 0:
            raise ValueError(f"tenancy: quantum_s={self.quantum_s} s must be positive")
        if self.order == "priority" and (not self.priorities or None in self.priorities):
            raise ValueError("tenancy: order=priority needs a priority for every model of the mix")

    @property
    def quantum_ns(self) -> int:
        """The quantum as the engine counts it."""
        return round(self.quantum_s * NS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """All models at once, a process each under NVIDIA's MPS: they share SMs and HBM bandwidth as they need them.

    Each lends only to itself (MIRAGE section 7.3), asks a policy of its own and has a host process of its own.

    Attributes:
        interference: share by which a model computes longer while another does, beyond the SMs and the bandwidth
            that it leaves to it (caches, schedulers of blocks, rows of DRAM).

    Raises:
        ValueError: it is negative.
    """

    interference: float = 0.0

    def __post_init__(self) -> None:
        if not self.interference >= 0:
            raise ValueError(f"tenancy: interference={self.interference} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """All models at once, each on a fixed share of SMs, HBM bandwidth and memory; only the host link is common.

    Each lends only to itself, asks a policy of its own and has a host process of its own.

    Attributes:
        shares: of the SMs and of the bandwidth, by model.

    Raises:
        ValueError: a share is out of range, or they exceed the device.
    """

    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"tenancy: shares={self.shares} must be in (0, 1]")
        if sum(self.shares) > 1 + 1e-9:  # 0.35 + 0.35 + 0.3 exceeds 1 as floats
            raise ValueError(f"tenancy: shares={self.shares} add up to more than the device")

    def part(self, rate: int, model: int) -> int:
        """What one model has of a rate of the device, 1 at least."""
        return max(1, round(rate * self.shares[model]))


Sharing = TemporalSharing | Mps | Mig

SHARINGS: Mapping[str, type[Sharing]] = {"temporal": TemporalSharing, "mps": Mps, "mig": Mig}
"""Every way of sharing by its name in ``conf/tenancy``."""

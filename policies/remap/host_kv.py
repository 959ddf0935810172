"""KV cache in host memory: what a step with it costs, one unit more of it, and one less."""

from __future__ import annotations

from dataclasses import replace

from policies.memory.residency import HostKv, Target
from policies.types import NS_PER_S, HardwareProfile
from policies.view import ModelView, RangeView


def exchange_ns(n_bytes: int, hardware: HardwareProfile, copies_ns: int = 0) -> int:
    """Time for so many bytes to go out and as many to come in, both at once: each has half of the joint bandwidth.

    Args:
        copies_ns: what the copies of one direction take beside that.
    """
    return copies_ns - (-2 * n_bytes * NS_PER_S // hardware.link.joint_bytes_per_s)


def attend_ns(n_bytes: int, n_layers: int, hardware: HardwareProfile) -> int:
    """Time in which the CPU attends to so many bytes, queries and outputs of every layer going there and back.

    Raises:
        ValueError: nobody has said how fast the CPU is.
    """
    if hardware.cpu_attention_bytes_per_s is None:
        raise ValueError(f"hardware {hardware.name}: set cpu.attention_bytes_per_s, or choose a policy without CPU")
    return n_layers * hardware.cpu_layer_ns + -(-n_bytes * NS_PER_S // hardware.cpu_attention_bytes_per_s)


def grown(held: HostKv | None, n_units: int, unit: HostKv) -> HostKv:
    """What lies on the host with so many units more."""
    return replace(unit, n_units=n_units + (0 if held is None else held.n_units))


def shrunk(model: ModelView) -> Target:
    """The model's target with its last unit on the host gone."""
    wanted, held = model.residency.wanted, model.residency.on_host
    assert held is not None
    return replace(wanted, on_host=replace(held, n_units=held.n_units - 1) if held.n_units > 1 else None)


def last_units(ranges: tuple[RangeView, ...]) -> list[RangeView]:
    """Of every model that holds KV on the host its last unit: the only one that may go."""
    return list({lent.lender: lent for lent in ranges if lent.is_on_host}.values())

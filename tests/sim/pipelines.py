"""A link that moves one byte a nanosecond, and steps over it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from policies.types import GB, LinkProfile
from sim.link import Link
from sim.pipeline import Pipeline

BYTE_A_NS = LinkProfile(h2d_bytes_per_s=GB, d2h_bytes_per_s=GB, joint_bytes_per_s=2 * GB)


def cycling_pipeline(
    n_layers: int, cycling: Sequence[int], n_slots: int, fetch_ns: int, *, static_slots: bool = False
) -> Pipeline:
    """Equal layers of ``fetch_ns`` bytes; the slots are the homes of the first cycling layers."""
    pipeline = Pipeline([fetch_ns] * n_layers, Link(BYTE_A_NS), static_slots=static_slots)
    pipeline.set_cycle(cycling, cycling[:n_slots], at_ns=0)
    return pipeline


def steady_step_ns(pipeline: Pipeline, layer_ns: int, rest_ns: int = 0, *, n_steps: int = 30) -> Fraction:
    """Mean length of a step once the first steps are over. The rest of a step comes after its last layer."""
    ends_ns = [0]
    for _ in range(2 * n_steps):
        ends_ns.append(pipeline.step(ends_ns[-1], layer_ns, 0, rest_ns)[0])
    return Fraction(ends_ns[-1] - ends_ns[n_steps], n_steps)

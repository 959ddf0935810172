"""A mixture of experts that is to be served, in the executor's terms: worked out before a device is touched."""

from __future__ import annotations

from dataclasses import dataclass

from executor.memory.expert_extents import ExpertExtents
from executor.memory.ranges import LendMode
from executor.models.checkpoint import Checkpoint
from executor.models.spec import DecoderSpec
from policies.types import HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class MoePlan:
    """What a run needs of a device.

    Attributes:
        max_rows: most sequences of a step.
        max_blocks: KV blocks of the longest sequence.
        max_prefill_tokens: new tokens of a step, at most.
        torch_bytes: what torch's own allocator may use: weights but for experts, and activations.
        checkpoint: where the weights are, ``None`` for random ones.
    """

    extents: ExpertExtents
    hardware: HardwareProfile
    mode: LendMode
    seed: int
    max_rows: int
    max_blocks: int
    max_prefill_tokens: int
    torch_bytes: int
    checkpoint: Checkpoint | None = None

    @property
    def spec(self) -> DecoderSpec:
        """The model."""
        return self.extents.spec

    @property
    def host_bytes(self) -> int:
        """Pinned host memory."""
        return self.extents.host_bytes

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.extents.kv.block_bytes // self.spec.shape.kv_bytes_per_token

"""A mixture of experts that is to be served, in the executor's terms: worked out before a device is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from executor.memory.expert_extents import ExpertExtents
from executor.memory.ranges import LendMode
from executor.models.checkpoint import Checkpoint, open_checkpoint
from executor.models.config import read_spec
from executor.models.spec import DecoderSpec, moe_spec_of
from executor.plan import DTYPES, LEND_MODES, RANK_TIMEOUT_S, max_blocks, max_rows, refuse_ahead
from executor.ranks.shards import moe_of_rank
from policies.lane import Lane
from policies.memory.experts import ExpertKv, ExpertResidency, OffloadCap
from policies.memory.ledger import Ledger
from policies.moe import MoeShape
from policies.moe_setup import ServedMoe
from policies.setup import V1_BATCHED_TOKENS, Serving
from policies.types import GIB, HardwareProfile

COMPARED = ("n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "vocab")
"""What a folder of weights and the configured shape have to agree on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoePlan:
    """What a run needs of a device.

    Attributes:
        extents: of one rank.
        whole: the model of which ``spec`` is one rank's part; the same where there is one rank.
        max_rows: most sequences of a step.
        max_blocks: KV blocks of the longest sequence.
        max_prefill_tokens: new tokens of a step, at most.
        torch_bytes: what torch's own allocator may use: weights but for experts, and activations.
        checkpoint: where the weights are, ``None`` for random ones.
        n_ranks, rank_timeout_s: as of ``Plan``.
    """

    extents: ExpertExtents
    whole: DecoderSpec
    hardware: HardwareProfile
    mode: LendMode
    seed: int
    max_rows: int
    max_blocks: int
    max_prefill_tokens: int
    torch_bytes: int
    checkpoint: Checkpoint | None = None
    n_ranks: int = 1
    rank_timeout_s: float = RANK_TIMEOUT_S

    @property
    def spec(self) -> DecoderSpec:
        """The model, or one rank's part of it."""
        return self.extents.spec

    @property
    def host_bytes(self) -> int:
        """Pinned host memory of one rank."""
        return self.extents.host_bytes

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.extents.kv.block_bytes // self.spec.shape.kv_bytes_per_token


def plan_moe(
    served: ServedMoe,
    ledger: Ledger,
    lane: Lane,
    hardware: HardwareProfile,
    serving: Serving,
    *,
    vmm: str,
    weights: Mapping[str, str],
    seed: int,
    rank_timeout_s: float = RANK_TIMEOUT_S,
) -> MoePlan:
    """Work out what a run needs.

    Args:
        ledger, lane: of one rank, as ``open_moe`` made them for the policy.
        vmm: how groups change hands, a key of ``LEND_MODES``.
        weights: folders of safetensors by model name; without one the model gets random weights.
        rank_timeout_s: see ``Plan``.

    Raises:
        ValueError: the executor cannot serve this.
    """
    name, n_ranks, (part,), (experts,) = served.shape.name, served.n_ranks, ledger.partitions, ledger.experts
    if vmm not in LEND_MODES:
        raise ValueError(
            f"backend.vmm={vmm}: the executor maps a whole group of experts at once; choose alias or range"
        )
    refuse_ahead(serving)
    if unknown := set(weights) - {name}:
        raise ValueError(f"backend.weights names {', '.join(sorted(unknown))}; the model is {name}")
    start = experts or ExpertResidency(served.shape.experts(n_ranks, hardware.page_bytes), OffloadCap(fraction=0.0))
    if start.n_increments:
        raise ValueError(
            f"model {name}: the executor stages experts and fetches none on demand; run with python -m sim"
        )
    folder = Path(weights[name]) if name in weights else None
    base = ExpertKv(base_bytes=part.kv_pages * hardware.page_bytes, block_bytes=lane.block_bytes)
    whole = _spec(served.shape, folder)
    spec = moe_of_rank(whole, n_ranks)
    plan = MoePlan(
        extents=ExpertExtents(spec=spec, start=start, kv=lane.expert_kv or base),
        whole=whole,
        hardware=hardware,
        mode=LEND_MODES[vmm],
        seed=seed,
        max_rows=max_rows(serving),
        max_blocks=max_blocks(
            serving.max_model_len or served.shape.max_context_tokens, served.shape.block_tokens(n_ranks)
        ),
        max_prefill_tokens=serving.max_num_batched_tokens or V1_BATCHED_TOKENS,
        torch_bytes=(part.other_pages + part.activation_pages) * hardware.page_bytes,
        checkpoint=open_checkpoint(folder) if folder else None,
        n_ranks=n_ranks,
        rank_timeout_s=rank_timeout_s,
    )
    if plan.spec.shape.total_bytes > plan.torch_bytes:
        raise ValueError(
            f"model {name}: weights but for experts of {plan.spec.shape.total_bytes / GIB:.2f} GiB exceed what its "
            f"partition leaves for them, {plan.torch_bytes / GIB:.2f} GiB; raise its activation_bytes"
        )
    return plan


def _spec(shape: MoeShape, folder: Path | None) -> DecoderSpec:
    if shape.dtype_bytes not in DTYPES:
        raise ValueError(f"model {shape.name}: dtype_bytes={shape.dtype_bytes}; the executor computes with 2, 4 or 8")
    wanted = moe_spec_of(shape, DTYPES[shape.dtype_bytes])
    if folder is None:
        return wanted
    found = read_spec(folder, wanted.dtype)
    for field in COMPARED:
        stored, configured = getattr(found.shape, field), getattr(wanted.shape, field)
        if stored != configured:
            raise ValueError(
                f"{folder}: its {field} is {stored}, model {shape.name} has {configured}; name the folder of that model"
            )
    if found.experts != wanted.experts or found.norms_heads != wanted.norms_heads:
        raise ValueError(
            f"{folder}: its experts are {found.experts}, those of model {shape.name} {wanted.experts}; name the folder "
            "of that model"
        )
    return replace(found, shape=wanted.shape)

"""What is to be served, in the executor's terms: extents and decoders, worked out before a device is touched."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from executor.memory.extents import Extents, measure
from executor.memory.masters import Tier
from executor.memory.ranges import LendMode
from executor.models.checkpoint import Checkpoint, open_checkpoint
from executor.models.config import read_spec
from executor.models.decode_buffers import BATCH_BUCKETS
from executor.models.decoder import layer_layout
from executor.models.spec import DecoderSpec, spec_of
from policies.memory.layout import KvLayout
from policies.memory.ledger import Ledger
from policies.ranks import of_rank
from policies.serving.scheduler import Preemption
from policies.setup import ServedModel, Serving
from policies.types import GIB, HardwareProfile, ModelShape

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
"""By bytes of a number."""

RANK_TIMEOUT_S = 60.0
"""For how long ranks wait for each other, unless told otherwise: longer than any step or change takes."""

LEND_MODES = {"alias": LendMode.ALIAS, "range": LendMode.REMAP}
"""By ``backend.vmm``."""

COMPARED = ("n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "vocab", "gated_mlp")
"""What a folder of weights and the configured shape have to agree on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model.

    Attributes:
        whole: the model of which ``spec`` is one rank's part; the same where there is one rank.
        max_rows: most sequences of a step.
        max_blocks: KV blocks of the longest sequence.
        n_host_blocks: KV blocks that may be swapped out.
        checkpoint: where its weights are, ``None`` for random ones.
    """

    spec: DecoderSpec
    whole: DecoderSpec
    extents: Extents
    max_rows: int
    max_blocks: int
    n_host_blocks: int
    checkpoint: Checkpoint | None

    @property
    def swap_bytes(self) -> int:
        """Pinned host memory for swapped KV."""
        return self.n_host_blocks * self.extents.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run needs of a device.

    Attributes:
        tier: where master copies are kept.
        peer: the device that keeps them if it is ``peer``, as its driver counts: for rank 0, the others have the next.
        n_ranks: devices among which every model is divided; all else is of one of them.
        rank_timeout_s: how long one waits for the others.
    """

    models: tuple[ModelPlan, ...]
    hardware: HardwareProfile
    mode: LendMode
    seed: int
    tier: Tier = "host"
    peer: int = 1
    n_ranks: int = 1
    rank_timeout_s: float = RANK_TIMEOUT_S

    @property
    def host_bytes(self) -> int:
        """Pinned host memory of all models."""
        masters = 0 if self.tier == "peer" else self._master_bytes(1)
        return masters + sum(model.swap_bytes for model in self.models)

    @property
    def peer_bytes(self) -> int:
        """Memory of the peer, in whole pages."""
        return self._master_bytes(self.hardware.page_bytes) if self.tier == "peer" else 0

    @property
    def torch_bytes(self) -> int:
        """What torch's own allocator may use."""
        return sum(model.extents.torch_bytes for model in self.models)

    def _master_bytes(self, page_bytes: int) -> int:
        all_extents = [model.extents for model in self.models]
        return sum(len(each.lendable) * -(-each.region_bytes // page_bytes) * page_bytes for each in all_extents)


def plan(
    served: Sequence[ServedModel],
    ledger: Ledger,
    layouts: Sequence[KvLayout],
    hardware: HardwareProfile,
    serving: Serving,
    *,
    vmm: str,
    preemption: Preemption,
    lendable: Sequence[Collection[int]],
    weights: Mapping[str, str],
    seed: int,
    tier: Tier = "host",
    peer: int = 1,
    n_ranks: int = 1,
    rank_timeout_s: float = RANK_TIMEOUT_S,
) -> Plan:
    """Work out what a run needs.

    Args:
        served: whole models.
        ledger, layouts: pages, and KV block ids of each model; with several ranks, of one.
        vmm: how homes change hands, a key of ``LEND_MODES``.
        lendable: layers of each model that may ever cycle.
        weights: folders of safetensors by model name; the other models get random weights.
        tier, peer, n_ranks, rank_timeout_s: see ``Plan``.

    Raises:
        ValueError: the executor cannot serve this.
    """
    if vmm not in LEND_MODES:
        raise ValueError(f"backend.vmm={vmm}: the executor maps a whole layer at once; choose alias or range")
    shapes = [model.shape for model in served]
    _refuse_unsafe(serving)
    if unknown := set(weights) - {shape.name for shape in shapes}:
        raise ValueError(f"backend.weights names {', '.join(sorted(unknown))}; the mix has {_names(shapes)}")
    for shape in shapes:
        if shape.mixture is not None or shape.kv_token_bytes is not None:
            raise ValueError(f"model {shape.name}: the executor runs OPT and Llama in 16 bits; run with python -m sim")
    folders = [Path(weights[shape.name]) if shape.name in weights else None for shape in shapes]
    wholes = [_spec(shape, folder) for shape, folder in zip(shapes, folders, strict=True)]
    for whole in wholes:
        _refuse_other_layers(whole)
    specs = [replace(whole, shape=of_rank(whole.shape, n_ranks)) for whole in wholes]
    extents = measure(
        [spec.shape for spec in specs],
        ledger.partitions,
        layouts,
        page_bytes=hardware.page_bytes,
        block_tokens=serving.block_tokens,
        region_bytes=[layer_layout(spec).n_bytes for spec in specs],
        lendable=lendable,
    )
    _refuse_overfull(extents)
    models = tuple(
        ModelPlan(
            spec=spec,
            whole=whole,
            extents=each,
            max_rows=max_rows(serving),
            max_blocks=max_blocks(spec.shape.max_context_tokens, serving.block_tokens),
            n_host_blocks=serving.swap_space_bytes // each.block_bytes if preemption == "swap" else 0,
            checkpoint=open_checkpoint(folder) if folder else None,
        )
        for spec, whole, each, folder in zip(specs, wholes, extents, folders, strict=True)
    )
    return Plan(
        models=models,
        hardware=hardware,
        mode=LEND_MODES[vmm],
        seed=seed,
        tier=tier,
        peer=peer,
        n_ranks=n_ranks,
        rank_timeout_s=rank_timeout_s,
    )


def _spec(shape: ModelShape, folder: Path | None) -> DecoderSpec:
    if shape.dtype_bytes not in DTYPES:
        raise ValueError(f"model {shape.name}: dtype_bytes={shape.dtype_bytes}; the executor computes with 2, 4 or 8")
    dtype = DTYPES[shape.dtype_bytes]
    if folder is None:
        return spec_of(shape, dtype)
    found = read_spec(folder, dtype)
    for field in COMPARED:
        stored, wanted = getattr(found.shape, field), getattr(shape, field)
        if stored != wanted:
            raise ValueError(
                f"{folder}: its {field} is {stored}, model {shape.name} has {wanted}; name the folder of that model"
            )
    return DecoderSpec(
        shape=shape,
        family=found.family,
        dtype=dtype,
        norm_eps=found.norm_eps,
        rotary_theta=found.rotary_theta,
        rotary_scaling=found.rotary_scaling,
        tied_head=found.tied_head,
    )


def _refuse_other_layers(whole: DecoderSpec) -> None:
    """Refuse a model whose layers hold more than OPT's or Llama's do, as Qwen3's norms of heads."""
    name, n_bytes = whole.shape.name, layer_layout(whole).n_bytes
    if n_bytes != whole.shape.layer_bytes:
        raise ValueError(
            f"model {name}: a layer has {whole.shape.layer_bytes} bytes, as {whole.family.value} {n_bytes}; the "
            "executor serves dense models like OPT and Llama, run others with python -m sim"
        )


def max_blocks(max_tokens: int, block_tokens: int) -> int:
    """KV blocks of the longest sequence, and of one token more."""
    return -(-(max_tokens + 1) // block_tokens)


def _refuse_unsafe(serving: Serving) -> None:
    """Refuse what a device must not do.

    V0 counts blocks as cached at its first look and may admit after they were evicted; V1 looks again.
    """
    if serving.scheduler == "vllm_v0" and serving.prefix_caching:
        raise ValueError("serving.prefix_caching: V0 may count blocks that are gone; set serving.scheduler=vllm_v1")
    refuse_ahead(serving)


def refuse_ahead(serving: Serving) -> None:
    """Refuse steps that are launched before the one under way has ended."""
    if serving.scheduler == "vllm_v1" and serving.async_scheduling:
        raise ValueError("serving.async_scheduling=true: the executor launches no step ahead; set it to false")


def max_rows(serving: Serving) -> int:
    """Most sequences of a step.

    Raises:
        ValueError: no step of the executor holds so many.
    """
    if serving.max_num_seqs > max(BATCH_BUCKETS):
        raise ValueError(
            f"serving.max_num_seqs={serving.max_num_seqs} exceeds the {max(BATCH_BUCKETS)} sequences of the executor's "
            "largest step; lower it"
        )
    return serving.max_num_seqs


def _refuse_overfull(models: Sequence[Extents]) -> None:
    for extents in models:
        outer = extents.shape.other_bytes
        if outer > extents.torch_bytes:
            raise ValueError(
                f"model {extents.shape.name}: embeddings and head of {outer / GIB:.2f} GiB exceed what its partition "
                f"leaves for them, {extents.torch_bytes / GIB:.2f} GiB; raise its activation_bytes"
            )


def _names(shapes: Sequence[ModelShape]) -> str:
    return ", ".join(shape.name for shape in shapes)

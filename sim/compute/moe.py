"""Compute times of one tensor-parallel rank of a mixture-of-experts model, from a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Protocol

from policies.moe import MoeShape
from policies.types import NS_PER_S, Work
from sim.compute.roofline import FLAT_TOKENS, Roofline
from sim.compute.routing import Routing

FP_BYTES = 2
"""Of an activation: bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Tensor-parallel ranks of one model, all alike, and what is theirs alone.

    Attributes:
        n_ranks: GPUs that share every layer.
        n_per_link: of these, ranks behind one link to host memory.
        reduce_s, reduce_bytes_per_s: an all-reduce takes ``reduce_s + bytes / reduce_bytes_per_s``.
        reduces_over_link: it goes through host memory (no NVLink, no peer access: the path that nvidia-smi calls
            SYS), hence over the link on which experts are staged.
        splits_regions: the gate-up GEMM of a layer starts before its down projections have been staged.
        moe_bandwidth_share, moe_flops_share: grouped GEMMs take ``bytes / bandwidth + flops / rate`` at these
            shares of the nominal rates.
        delta_sequence_s, delta_token_s: a delta-net layer takes so long for every decoding sequence and for every
            prompt token, per value head of the rank.

    Raises:
        ValueError: a number is out of range.

    Source: conf/ranks/*.yaml, each number with its own.
    """

    n_ranks: int
    n_per_link: int
    reduce_s: float
    reduce_bytes_per_s: int
    reduces_over_link: bool
    splits_regions: bool
    moe_bandwidth_share: float
    moe_flops_share: float
    delta_sequence_s: float
    delta_token_s: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or not (value or field.name in ("reduces_over_link", "splits_regions", "reduce_s")):
                raise ValueError(f"ranks: {field.name}={value} is out of range")

    def sum_ns(self, n_tokens: int, hidden: int) -> int:
        """Time of one all-reduce of so many rows of the residual stream; nothing where there is one rank."""
        if self.n_ranks == 1:
            return 0
        n_bytes = n_tokens * hidden * FP_BYTES
        return round((self.reduce_s + n_bytes / self.reduce_bytes_per_s) * NS_PER_S)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Device time of the parts of a layer, in the order in which they run.

    Attributes:
        mixer_ns: attention or delta-net with its projections, norms, the shared expert and the router.
        gate_up_ns, down_ns: the two grouped GEMMs of the experts; of a dense layer, its MLP.
        reduce_ns: each of the two all-reduces, behind the mixer and behind the experts.
    """

    mixer_ns: int
    gate_up_ns: int
    down_ns: int
    reduce_ns: int

    @property
    def all_ns(self) -> int:
        """The whole layer, if nothing waits."""
        return self.mixer_ns + self.gate_up_ns + self.down_ns + 2 * self.reduce_ns


class MoeCompute(Protocol):
    """A source of the compute times of one rank."""

    def layers(self, work: Work) -> Sequence[LayerTimes]:
        """The times of every layer, in order."""
        ...

    def head_ns(self, work: Work) -> int:
        """Device time outside the layers."""
        ...

    def host_ns(self, work: Work) -> int:
        """Time of the host before the device can start."""
        ...


class MoeRoofline:
    """How long the layers of one rank take.

    Args:
        machine: fitted constants of the GPU, see ``Roofline``.
        shape: the model.
        ranks: how it is divided.
        routing: which experts its tokens use.
    """

    def __init__(self, machine: Roofline, shape: MoeShape, ranks: Ranks, routing: Routing) -> None:
        self._machine = machine
        self._shape = shape
        self._ranks = ranks
        self._routing = routing
        self._byte_ns = NS_PER_S / machine.hbm_bytes_per_s
        self._flop_ns = NS_PER_S / machine.flops_per_s
        self._kinds = _kinds(shape)
        self._dense_ns = cache(self._without_attention_ns)
        self._experts_ns = cache(self._grouped_gemms_ns)

    @property
    def n_layers(self) -> int:
        """All layers."""
        return self._shape.n_layers

    @property
    def routing(self) -> Routing:
        """Which experts tokens use."""
        return self._routing

    def layers(self, work: Work) -> Sequence[LayerTimes]:
        """The times of every layer in order; those of one kind are one object."""
        times = {kind: self._layer(work, *kind) for kind in set(self._kinds)}
        return [times[kind] for kind in self._kinds]

    def head_ns(self, work: Work) -> int:
        """Device time outside the layers: embedding, last norm, logits of this rank's part of the vocabulary."""
        shape, n = self._shape, work.n_sampled
        logits_ns = self._gemm_ns(shape.hidden * shape.vocab // self._ranks.n_ranks, n) if n else 0
        return round(self._machine.head_s * NS_PER_S + logits_ns)

    def host_ns(self, work: Work) -> int:
        """Time of the host before the device can start."""
        machine = self._machine
        return round(machine.host_scale * (machine.host_s + machine.host_sequence_s * work.n_seqs) * NS_PER_S)

    def _layer(self, work: Work, has_delta: bool, is_dense: bool) -> LayerTimes:
        mixer_ns = self._dense_ns(work.n_tokens, has_delta)
        mixer_ns += self._delta_ns(work) if has_delta else self._attention_ns(work)
        gate_up_ns, down_ns = self._mlp_ns(work.n_tokens) if is_dense else self._experts_ns(work.n_tokens)
        reduce_ns = self._ranks.sum_ns(work.n_tokens, self._shape.hidden)
        return LayerTimes(round(mixer_ns), gate_up_ns, down_ns, reduce_ns)

    def _without_attention_ns(self, n_tokens: int, has_delta: bool) -> float:
        """Projections, small kernels, router and shared experts of a layer: what depends on tokens alone."""
        shape, machine = self._shape, self._machine
        delta = shape.delta_net
        params = delta.layer_params if has_delta and delta else shape.attention_params
        n_gemms = 4 if shape.shared_params else 3  # into the mixer, out of it, router, shared expert
        weights = (params + shape.shared_params) // self._ranks.n_ranks + shape.router_params
        ns = self._gemm_ns(weights, n_tokens) + (n_gemms - 1) * machine.gemm_s * NS_PER_S
        ns += machine.small_ops_s * NS_PER_S
        if n_tokens > FLAT_TOKENS:
            small_bytes = FP_BYTES * 10 * shape.hidden  # two norms and two residual adds
            ns += (n_tokens - FLAT_TOKENS) * small_bytes * self._byte_ns / machine.gemm_bandwidth_share
        return ns

    def _gemm_ns(self, weights: int, n_tokens: int) -> float:
        machine = self._machine
        bytes_ns = self._shape.dtype_bytes * weights * self._byte_ns / machine.gemm_bandwidth_share
        flops_ns = 2 * weights * n_tokens * self._flop_ns / machine.gemm_flops_share
        return machine.gemm_s * NS_PER_S + max(bytes_ns, flops_ns)

    def _attention_ns(self, work: Work) -> float:
        machine, shape, n_ranks = self._machine, self._shape, self._ranks.n_ranks
        ns = 0.0
        if work.n_decode_seqs:
            kv_bytes = work.decode_context_tokens * shape.kv_bytes_per_token(n_ranks) / shape.n_attention_layers
            ns += (machine.gqa_fixed_s + machine.gqa_sequence_s * work.n_decode_seqs) * NS_PER_S
            ns += kv_bytes * self._byte_ns / machine.gqa_bandwidth_share
        if work.n_prefill_tokens:
            flops = 4 * shape.n_heads // n_ranks * shape.head_dim * work.prefill_pairs
            ns += machine.prefill_attention_s * NS_PER_S
            ns += flops * self._flop_ns / machine.prefill_attention_flops_share
        return ns

    def _delta_ns(self, work: Work) -> float:
        delta, ranks = self._shape.delta_net, self._ranks
        assert delta is not None
        heads = delta.n_value_heads / ranks.n_ranks
        sequences_s = work.n_decode_seqs * ranks.delta_sequence_s
        return heads * (sequences_s + work.n_prefill_tokens * ranks.delta_token_s) * NS_PER_S

    def _grouped_gemms_ns(self, n_tokens: int) -> tuple[int, int]:
        """Gate and up together, and down: the weights of the experts in use, and the operations of every token."""
        shape, ranks, machine = self._shape, self._ranks, self._machine
        n_distinct = self._routing.n_distinct(n_tokens)
        byte_ns = self._byte_ns / ranks.moe_bandwidth_share
        flop_ns = self._flop_ns / ranks.moe_flops_share
        flops = 2 * shape.expert_params * shape.n_active * n_tokens / ranks.n_ranks

        def part(n_bytes: int, share: float) -> int:
            read_ns = n_distinct * n_bytes / ranks.n_ranks * byte_ns
            return round(machine.gemm_s * NS_PER_S + read_ns + share * flops * flop_ns)

        return part(shape.gate_up_bytes, 2 / 3), part(shape.down_bytes, 1 / 3)

    def _mlp_ns(self, n_tokens: int) -> tuple[int, int]:
        weights = self._shape.dense_params // self._ranks.n_ranks
        return round(self._gemm_ns(weights * 2 // 3, n_tokens)), round(self._gemm_ns(weights // 3, n_tokens))


def _kinds(shape: MoeShape) -> list[tuple[bool, bool]]:
    """For each layer whether it has a delta-net in place of attention, and whether it is dense in place of experts."""
    every = shape.n_layers // shape.n_attention_layers  # one layer of so many has attention, the last of each
    has_delta = [shape.delta_net is not None and (layer + 1) % every != 0 for layer in range(shape.n_layers)]
    return [(delta, layer < shape.n_dense_layers) for layer, delta in enumerate(has_delta)]

"""Compute times from a roofline: each kernel is bound by HBM or by the tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Final, Self

from policies.types import NS_PER_S, Mixture, ModelShape, Work
from sim.compute.routing import Routing, uniform

FS_PER_NS: Final = 10**6
FLAT_TOKENS: Final = 256
"""Tokens up to which norms, adds and activations cost no more than their launches.

Source: Vidur's H100 tables, hidden 5120: a norm takes 80 us for 4096 tokens and 5 us for few,
which is what 4096 * 5 / 80 = 256 tokens take.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Fitted constants of one machine; shares are of the two nominal rates.

    A GEMM takes ``gemm_s + max(bytes / bandwidth, flops / rate)``, decode attention of a
    layer ``fixed + sequence * n + KV bytes / bandwidth`` (``mha``: as many KV heads as
    heads, ``gqa``: fewer), prefill attention ``fixed + flops / rate``. The small kernels
    of a layer take ``small_ops_s``, and from ``FLAT_TOKENS`` on stream their operands at
    the bandwidth of a GEMM.

    Attributes:
        hbm_bytes_per_s, flops_per_s: nominal rates, dense at the weights' type.
        head_s: embedding, last norm and sampling; the logits GEMM comes on top.
        host_s, host_seq_s: host time of a step, fixed and for each sequence.
        host_scale: multiplies both: a faster or slower host.
        moe_bandwidth_share, moe_flops_share: of grouped GEMMs of experts. The defaults are a fit to vLLM 0.24's kernel
            on H100 and H200 (aiconfigurator-core 0.12: 13 kinds of experts, 1 to 16384 tokens): 10 % off on average.

    Raises:
        ValueError: a rate or a share is not positive, or a duration is negative.

    Source: conf/hardware/*.yaml, each number with its own.
    """

    hbm_bytes_per_s: int
    flops_per_s: int
    gemm_s: float
    gemm_bandwidth_share: float
    gemm_flops_share: float
    mha_fixed_s: float
    mha_sequence_s: float
    mha_bandwidth_share: float
    gqa_fixed_s: float
    gqa_sequence_s: float
    gqa_bandwidth_share: float
    prefill_attention_s: float
    prefill_attention_flops_share: float
    small_ops_s: float
    head_s: float
    host_s: float
    host_sequence_s: float
    host_scale: float = 1.0
    moe_bandwidth_share: float = 0.82
    moe_flops_share: float = 0.48

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_rate = field.name.endswith(("_share", "_per_s"))
            if value < 0 or (is_rate and value == 0):
                raise ValueError(f"roofline: {field.name}={value} must be {'positive' if is_rate else '>= 0'}")


@dataclass(frozen=True, slots=True)
class _Gemm:
    """Nanoseconds of ``(n_tokens, k) x (k, n)``: operands over bandwidth or operations over rate."""

    weights_ns: float
    token_bytes_ns: float
    token_flops_ns: float

    @classmethod
    def of(cls, machine: Roofline, n: int, k: int, dtype_bytes: int) -> Self:
        byte_ns = NS_PER_S / (machine.hbm_bytes_per_s * machine.gemm_bandwidth_share)
        flop_ns = NS_PER_S / (machine.flops_per_s * machine.gemm_flops_share)
        return cls(dtype_bytes * n * k * byte_ns, dtype_bytes * (n + k) * byte_ns, 2 * n * k * flop_ns)

    def ns(self, n_tokens: int) -> float:
        return max(self.weights_ns + n_tokens * self.token_bytes_ns, n_tokens * self.token_flops_ns)

    def busy_ns(self, n_tokens: int) -> tuple[float, float]:
        """Of that, for how long SMs compute and HBM is read and written."""
        return n_tokens * self.token_flops_ns, self.weights_ns + n_tokens * self.token_bytes_ns


@dataclass(frozen=True, slots=True)
class _Experts:
    """Nanoseconds of a layer's two grouped GEMMs: weights of the experts in use, or operations of every token."""

    routing: Routing
    expert_ns: float
    token_ns: float

    @classmethod
    def of(cls, machine: Roofline, mixture: Mixture) -> Self:
        byte_ns = NS_PER_S / (machine.hbm_bytes_per_s * machine.moe_bandwidth_share)
        flop_ns = NS_PER_S / (machine.flops_per_s * machine.moe_flops_share)
        share = mixture.expert_share
        return cls(
            uniform(mixture.n_experts, mixture.n_active),
            share * mixture.expert_bytes * byte_ns,
            share * 2 * mixture.expert_params * mixture.n_active * flop_ns,
        )

    def ns(self, n_tokens: int) -> float:
        return max(self.routing.n_distinct(n_tokens) * self.expert_ns, n_tokens * self.token_ns)

    def busy_ns(self, n_tokens: int) -> tuple[float, float]:
        """Of that, for how long SMs compute and HBM is read."""
        return n_tokens * self.token_ns, self.routing.n_distinct(n_tokens) * self.expert_ns


class ModelRoofline:
    """The roofline of one model on one machine: a ``ComputeModel``.

    What depends on neither tokens nor contexts is worked out here, once.
    """

    def __init__(self, machine: Roofline, shape: ModelShape) -> None:
        gemm_ns = machine.gemm_s * NS_PER_S
        self._layer_gemms = _layer_gemms(machine, shape)
        self._experts = None if shape.mixture is None else _Experts.of(machine, shape.mixture)
        n_gemms = len(self._layer_gemms) + (0 if self._experts is None else 2)
        self._launches_ns = n_gemms * gemm_ns + machine.small_ops_s * NS_PER_S
        hbm_ns_per_byte = NS_PER_S / machine.hbm_bytes_per_s
        self._small_token_ns = _small_bytes(shape) * hbm_ns_per_byte / machine.gemm_bandwidth_share

        is_mha = shape.n_kv_heads == shape.n_heads
        fixed_s, sequence_s, share = (
            (machine.mha_fixed_s, machine.mha_sequence_s, machine.mha_bandwidth_share)
            if is_mha
            else (machine.gqa_fixed_s, machine.gqa_sequence_s, machine.gqa_bandwidth_share)
        )
        self._decode_ns, self._decode_sequence_ns = fixed_s * NS_PER_S, sequence_s * NS_PER_S
        kv_bytes = shape.kv_bytes_per_token // shape.n_layers
        self._context_token_fs = round(kv_bytes * hbm_ns_per_byte / share * FS_PER_NS)

        self._prefill_ns = machine.prefill_attention_s * NS_PER_S
        prefill_flops_per_s = machine.flops_per_s * machine.prefill_attention_flops_share
        self._pair_ns = 4 * shape.n_heads * shape.head_dim * NS_PER_S / prefill_flops_per_s

        self._logits = _Gemm.of(machine, shape.vocab, shape.hidden, shape.dtype_bytes)
        self._logits_launch_ns = gemm_ns
        self._head_ns = machine.head_s * NS_PER_S
        self._host_ns = round(machine.host_scale * machine.host_s * NS_PER_S)
        self._host_sequence_ns = round(machine.host_scale * machine.host_sequence_s * NS_PER_S)

        self._of_tokens_ns = cache(self._kernels_ns)
        self._of_sampled_ns = cache(self._sampled_ns)
        self._of_decodes_ns: dict[int, int] = {}

    def layer_ns(self, work: Work) -> int:
        """Device time of one layer."""
        return self._without_context_ns(work) + work.decode_context_tokens * self._context_token_fs // FS_PER_NS

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Sequence[int]:
        """Device time of one layer in each of ``n_steps`` repetitions of a decode step."""
        fixed_ns, token_fs = self._without_context_ns(work), self._context_token_fs
        first_fs = work.decode_context_tokens * token_fs
        if n_steps == 1:
            return (fixed_ns + first_fs // FS_PER_NS,)
        step_fs = work.n_decode_seqs * token_fs
        return [fixed_ns + (first_fs + nth * step_fs) // FS_PER_NS for nth in range(n_steps)]

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """Ends of such steps one behind the other: see ``ends_of``. Nothing is made for a step but its end."""
        fixed_ns, token_fs = self._without_context_ns(work), self._context_token_fs
        context_fs, more_fs = work.decode_context_tokens * token_fs, work.n_decode_seqs * token_fs
        now_ns = start_ns
        ends_ns: list[int] = []
        for _ in range(n_steps):
            now_ns += n_layers * (fixed_ns + context_fs // FS_PER_NS) + rest_ns
            ends_ns.append(now_ns)
            if now_ns >= stop_ns:
                break
            context_fs += more_fs
        return ends_ns

    def head_ns(self, work: Work) -> int:
        """Device time outside the layers: embedding, last norm, logits, sampling."""
        return self._of_sampled_ns(work.n_sampled)

    def layer_busy_ns(self, work: Work) -> tuple[float, float]:
        """Of the time of one layer, for how long SMs compute and HBM is read and written.

        The rest are launches, and whatever of both a kernel leaves idle.
        """
        n_tokens = work.n_prefill_tokens + work.n_decode_seqs
        parts = [gemm.busy_ns(n_tokens) for gemm in self._layer_gemms]
        if self._experts is not None:
            parts.append(self._experts.busy_ns(n_tokens))
        compute_ns, hbm_ns = (sum([part[resource] for part in parts]) for resource in (0, 1))
        compute_ns += work.prefill_pairs * self._pair_ns
        hbm_ns += work.decode_context_tokens * self._context_token_fs / FS_PER_NS
        hbm_ns += max(0, n_tokens - FLAT_TOKENS) * self._small_token_ns
        return compute_ns, hbm_ns

    def head_busy_ns(self, work: Work) -> tuple[float, float]:
        """The same of the time outside the layers."""
        return self._logits.busy_ns(work.n_sampled) if work.n_sampled else (0.0, 0.0)

    def host_ns(self, work: Work) -> int:
        """Time of the host before the device can start."""
        return self._host_ns + self._host_sequence_ns * (work.n_prefill_seqs + work.n_decode_seqs)

    def _without_context_ns(self, work: Work) -> int:
        """All of a layer but reading the KV cache that decoding sequences attend to."""
        n_seqs = work.n_decode_seqs
        if not work.n_prefill_tokens and n_seqs in self._of_decodes_ns:
            return self._of_decodes_ns[n_seqs]
        ns = self._of_tokens_ns(work.n_prefill_tokens + n_seqs)
        if n_seqs:
            ns += self._decode_ns + n_seqs * self._decode_sequence_ns
        if work.n_prefill_tokens:
            return round(ns + (self._prefill_ns + work.prefill_pairs * self._pair_ns))
        self._of_decodes_ns[n_seqs] = decode_ns = round(ns)
        return decode_ns

    def _kernels_ns(self, n_tokens: int) -> float:
        """All kernels of a layer but attention."""
        ns = self._launches_ns
        for gemm in self._layer_gemms:
            ns += gemm.ns(n_tokens)
        if self._experts is not None:
            ns += self._experts.ns(n_tokens)
        if n_tokens > FLAT_TOKENS:
            ns += (n_tokens - FLAT_TOKENS) * self._small_token_ns
        return ns

    def _sampled_ns(self, n_sampled: int) -> int:
        """The head, with so many tokens to sample."""
        logits_ns = self._logits_launch_ns + self._logits.ns(n_sampled) if n_sampled else 0
        return round(self._head_ns + logits_ns)


def _layer_gemms(machine: Roofline, shape: ModelShape) -> tuple[_Gemm, ...]:
    return tuple(_Gemm.of(machine, n, k, shape.dtype_bytes) for n, k in gemm_sizes(shape))


def gemm_sizes(shape: ModelShape) -> tuple[tuple[int, int], ...]:
    """Outputs and inputs of a layer's GEMMs: QKV, attention output, up (with the gate, if there is one), down.

    Of a mixture all that is not its experts, as two of the model's width.
    """
    if shape.mixture is not None:
        params = shape.mixture.mixer_params, shape.mixture.shared_params
        return tuple((n // shape.hidden, shape.hidden) for n in params if n)
    n_query = shape.n_heads * shape.head_dim
    n_qkv = n_query + 2 * shape.n_kv_heads * shape.head_dim
    n_up = shape.ffn * (2 if shape.gated_mlp else 1)
    return (n_qkv, shape.hidden), (shape.hidden, n_query), (n_up, shape.hidden), (shape.hidden, shape.ffn)


def small_ns(machine: Roofline, shape: ModelShape, n_tokens: int) -> float:
    """Nanoseconds of a layer's small kernels: norms, adds, activation, storing K and V."""
    streamed_tokens = max(0, n_tokens - FLAT_TOKENS)
    byte_ns = NS_PER_S / machine.hbm_bytes_per_s / machine.gemm_bandwidth_share
    return machine.small_ops_s * NS_PER_S + streamed_tokens * _small_bytes(shape) * byte_ns


def _small_bytes(shape: ModelShape) -> int:
    """HBM traffic of a layer's small kernels for one token: two norms, two residual adds, the activation."""
    activation = (3 if shape.gated_mlp else 2) * shape.ffn
    return shape.dtype_bytes * (2 * 2 * shape.hidden + 2 * 3 * shape.hidden + activation)

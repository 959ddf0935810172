"""The shape of a mixture-of-experts model, and what one of its tensor-parallel ranks holds."""

from __future__ import annotations

from dataclasses import dataclass

from policies.memory.experts import ExpertLayout

BLOCK_MULTIPLE_TOKENS = 16
"""vLLM's attention kernels take blocks of a multiple of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Layers that keep a state of fixed size in place of a KV cache: gated-delta-net.

    Attributes:
        layer_params: weights of one.
        n_key_heads, n_value_heads, head_dim: of the state, ``n_value_heads`` matrices of ``head_dim`` squared.
        conv_width: tokens that the convolution before it looks at.
        state_dtype_bytes: of a number in the state.
    """

    n_layers: int
    layer_params: int
    n_key_heads: int
    n_value_heads: int
    head_dim: int
    conv_width: int
    state_dtype_bytes: int = 2

    def state_bytes(self, n_ranks: int) -> int:
        """State of one sequence in one layer on one rank."""
        matrices = self.n_value_heads * self.head_dim**2
        channels = (2 * self.n_key_heads + self.n_value_heads) * self.head_dim
        return self.state_dtype_bytes * (matrices + channels * (self.conv_width - 1)) // n_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """A decoder-only mixture of experts. Parameters are counted, bytes follow from their type.

    Attributes:
        n_layers: all layers; ``n_dense_layers`` of them, the first, have a dense MLP in place of experts.
        attention_params: weights of one attention layer.
        kv_bytes_per_layer: K and V of a token in one attention layer, all heads.
        n_kv_shards: over how many ranks these can be divided; 1: each rank holds all (MLA).
        norm_params, router_params, shared_params: weights of one layer: norms; router; experts for every token.
        n_experts, n_active: experts of a layer, and how many of them a token is routed to.
        gate_up_bytes, down_bytes: weights of one expert in its two tensors.
        expert_params: parameters of one expert.
        dtype_bytes: of all weights but those of the experts.

    Raises:
        ValueError: the parts exceed the whole, or layers do not add up.

    Source: conf/model/moe/*.yaml, each number with its own.
    """

    name: str
    n_layers: int
    hidden: int
    n_heads: int
    head_dim: int
    vocab: int
    attention_params: int
    kv_bytes_per_layer: int
    n_kv_shards: int
    norm_params: int
    router_params: int
    shared_params: int
    n_experts: int
    n_active: int
    expert_ffn: int
    expert_params: int
    gate_up_bytes: int
    down_bytes: int
    total_params: int
    max_context_tokens: int
    n_dense_layers: int = 0
    dense_params: int = 0
    delta_net: DeltaNet | None = None
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        if self.delta_net is not None and self.n_attention_layers < 1:
            raise ValueError(f"model {self.name}: {self.delta_net.n_layers} delta-net layers leave none with attention")
        if self.other_params < 0:
            raise ValueError(f"model {self.name}: the layers exceed total_params={self.total_params}")

    @property
    def n_moe_layers(self) -> int:
        """Layers with experts."""
        return self.n_layers - self.n_dense_layers

    @property
    def n_attention_layers(self) -> int:
        """Layers with a KV cache."""
        return self.n_layers - (self.delta_net.n_layers if self.delta_net else 0)

    @property
    def n_state_groups(self) -> int:
        """Groups of state layers that vLLM makes, each of as many layers as have attention."""
        return -(-self.delta_net.n_layers // self.n_attention_layers) if self.delta_net else 0

    @property
    def mixer_params(self) -> int:
        """Weights of all layers that mix tokens: attention and delta-net."""
        delta = self.delta_net.n_layers * self.delta_net.layer_params if self.delta_net else 0
        return self.n_attention_layers * self.attention_params + delta

    @property
    def other_params(self) -> int:
        """Weights outside the layers: embeddings, last norm, head."""
        moe = self.n_experts * self.expert_params + self.router_params + self.shared_params
        layers = self.n_layers * self.norm_params + self.n_moe_layers * moe + self.n_dense_layers * self.dense_params
        return self.total_params - self.mixer_params - layers

    @property
    def active_params(self) -> int:
        """Weights that one token meets."""
        return self.total_params - self.n_moe_layers * (self.n_experts - self.n_active) * self.expert_params

    def experts(self, n_ranks: int, page_bytes: int) -> ExpertLayout:
        """The expert shards of one of so many ranks.

        Raises:
            ValueError: the experts do not divide among them.
        """
        if self.gate_up_bytes % n_ranks or self.down_bytes % n_ranks:
            raise ValueError(f"model {self.name}: an expert does not divide among {n_ranks} ranks")
        return ExpertLayout(
            n_layers=self.n_moe_layers,
            n_experts=self.n_experts,
            n_active=self.n_active,
            gate_up_bytes=self.gate_up_bytes // n_ranks,
            down_bytes=self.down_bytes // n_ranks,
            page_bytes=page_bytes,
        )

    def rest_bytes(self, n_ranks: int) -> int:
        """Weights of one rank outside the experts: norms and routers whole, a share of all else."""
        copied = self.n_layers * self.norm_params + self.n_moe_layers * self.router_params
        experts = self.n_moe_layers * self.n_experts * self.expert_params
        divided = self.total_params - copied - experts
        return self.dtype_bytes * (copied + -(-divided // n_ranks))

    def kv_bytes_per_token(self, n_ranks: int) -> int:
        """K and V of a token on one rank, all layers; heads that are too few to divide are copied."""
        return self.n_attention_layers * self.kv_bytes_per_layer // min(n_ranks, self.n_kv_shards)

    def block_tokens(self, n_ranks: int, at_least: int = BLOCK_MULTIPLE_TOKENS) -> int:
        """Tokens of a KV block: as many as make its pages no smaller than a state, which vLLM keeps in pages, too."""
        if self.delta_net is None:
            return at_least
        page_token_bytes = self.kv_bytes_per_layer // min(n_ranks, self.n_kv_shards)
        n_tokens = max(at_least, -(-self.delta_net.state_bytes(n_ranks) // page_token_bytes))
        return -(-n_tokens // BLOCK_MULTIPLE_TOKENS) * BLOCK_MULTIPLE_TOKENS

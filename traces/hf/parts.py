"""What a language model consists of, counted in parameters."""

from __future__ import annotations

from dataclasses import dataclass

from policies.moe import DeltaNet


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Parameters of one layer by what they do.

    Attributes:
        mixer: attention or delta-net, projections and norms of its own included.
        norms: before and behind it.
        mlp: what every token goes through: a dense MLP, or shared experts.
        router: which experts a token goes to.
        n_experts: of this layer; each has ``Experts.params``.
        n_cached: numbers that a token leaves in the KV cache: K and V of every KV head, or MLA's latent.
        window_tokens: tokens that it looks back at most; ``None``: all. Its whole cache is counted nevertheless.
    """

    mixer: int
    norms: int
    mlp: int = 0
    router: int = 0
    n_experts: int = 0
    n_cached: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a mixture, all alike.

    Attributes:
        n_active: that a token goes to.
        ffn: inner width.
        gate_up_weights, down_weights: of one expert, in its two tensors; ``biases`` come on top.
    """

    n_active: int
    ffn: int
    gate_up_weights: int
    down_weights: int
    biases: int = 0

    @property
    def params(self) -> int:
        """Parameters of one expert."""
        return self.gate_up_weights + self.down_weights + self.biases


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A decoder-only language model.

    Attributes:
        head_dim: of a query; with MLA the part with positions and the part without.
        ffn: inner width of a dense layer's MLP; ``gated``: it has three matrices.
        outside: embeddings, positions, last norm, and the head unless it is tied to the embeddings.
        experts, delta_net: what some architectures have.
    """

    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    context_tokens: int
    layers: tuple[Layer, ...]
    outside: int
    experts: Experts | None = None
    delta_net: DeltaNet | None = None

    @property
    def n_params(self) -> int:
        """All of them."""
        own = sum(layer.mixer + layer.norms + layer.mlp + layer.router for layer in self.layers)
        return own + self.outside + self.n_expert_params

    @property
    def n_expert_params(self) -> int:
        """Those of all experts."""
        return sum(layer.n_experts for layer in self.layers) * (self.experts.params if self.experts else 0)

"""The frozen vocabulary: what is served, on what machine, and what one step computes.

Counts and bytes are integers; a point in time or a duration that the engine adds up
is an integer number of nanoseconds (``_ns``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policies.requests import Arrival as Arrival
from policies.requests import Request as Request
from policies.requests import Work as Work
from policies.requests import one_token_later as one_token_later

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9
NS_PER_S: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What a layer of a mixture of experts computes with in place of a dense layer's matrices.

    Where layers differ (a dense one first, delta-nets between attention), these are means over them.

    Attributes:
        mixer_params: attention or delta-net with its projections.
        shared_params: what every token goes through besides: router, shared experts, dense MLPs.
        n_experts, n_active: experts of a layer, and how many of them a token is routed to.
        expert_params, expert_bytes: of one expert.
        expert_share: share of the layers that have experts, in (0, 1].
    """

    mixer_params: int
    shared_params: int
    n_experts: int
    n_active: int
    expert_params: int
    expert_bytes: int
    expert_share: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_active <= self.n_experts:
            raise ValueError(f"mixture: n_active={self.n_active} is outside 1..{self.n_experts} experts")
        if not 0 < self.expert_share <= 1:
            raise ValueError(f"mixture: expert_share={self.expert_share} is outside (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer with equal layers.

    ``layer_bytes`` are the weights of one layer, ``total_bytes`` those of the whole
    model; embeddings, norms and head are the difference and never move.

    Attributes:
        kv_token_bytes: K and V of one token in all layers, where they are not those of every KV head in every
            layer at the weights' type; ``None``: they are.
        mixture: of a mixture of experts; ``None``: every layer is dense.

    Raises:
        ValueError: a size is not positive, or the layers exceed the whole.

    Source: conf/model/*.yaml, each number with its own.
    """

    name: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated_mlp: bool
    layer_bytes: int
    total_bytes: int
    max_context_tokens: int
    dtype_bytes: int = 2
    kv_token_bytes: int | None = None
    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        for field in ("n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "vocab", "layer_bytes"):
            if getattr(self, field) <= 0:
                raise ValueError(f"model {self.name}: {field}={getattr(self, field)} must be positive")
        if self.n_layers * self.layer_bytes > self.total_bytes:
            raise ValueError(f"model {self.name}: {self.n_layers} layers exceed total_bytes={self.total_bytes}")
        if self.kv_token_bytes is not None and self.kv_token_bytes < self.n_layers:
            raise ValueError(f"model {self.name}: kv_token_bytes={self.kv_token_bytes} is less than a byte a layer")

    @property
    def other_bytes(self) -> int:
        """Weights outside the layers: embeddings, last norm, head."""
        return self.total_bytes - self.n_layers * self.layer_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token in every layer."""
        if self.kv_token_bytes is not None:
            return self.kv_token_bytes
        return 2 * self.n_kv_heads * self.head_dim * self.dtype_bytes * self.n_layers

    def block_bytes(self, block_tokens: int) -> int:
        """K and V of ``block_tokens`` tokens in every layer."""
        return block_tokens * self.kv_bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """Bandwidth between host memory and HBM, in bytes/s.

    ``joint_bytes_per_s`` bounds the sum of both directions while both are busy.
    """

    h2d_bytes_per_s: int
    d2h_bytes_per_s: int
    joint_bytes_per_s: int

    def __post_init__(self) -> None:
        for field in ("h2d_bytes_per_s", "d2h_bytes_per_s", "joint_bytes_per_s"):
            if getattr(self, field) <= 0:
                raise ValueError(f"link: {field}={getattr(self, field)} must be positive")

    def fetch_ns(self, n_bytes: int) -> int:
        """Duration of one host-to-device copy that has the link to itself, rounded up."""
        return -(-n_bytes * NS_PER_S // self.h2d_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """What a server knows of its machine: memory, page size, link, and how fast its CPU attends.

    ``cpu_attention_bytes_per_s`` is the rate at which the CPU reads KV cache in host memory and attends to it,
    ``None`` where nobody has said; ``cpu_layer_ns`` what a layer's queries and outputs need to go there and back.

    Compute constants belong to the world that needs them (``sim/compute``).
    """

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: int
    page_bytes: int
    link: LinkProfile
    cpu_attention_bytes_per_s: int | None = None
    cpu_layer_ns: int = 0

    def __post_init__(self) -> None:
        for field in ("hbm_bytes", "hbm_bytes_per_s", "page_bytes"):
            if getattr(self, field) <= 0:
                raise ValueError(f"hardware {self.name}: {field}={getattr(self, field)} must be positive")

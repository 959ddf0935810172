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
class ModelShape:
    """A decoder-only transformer with equal layers.

    ``layer_bytes`` are the weights of one layer, ``total_bytes`` those of the whole
    model; embeddings, norms and head are the difference and never move. ``kv_token_bytes`` are the K and V of
    a token in all layers, where that is not what as many layers of plain attention would have.

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

    def __post_init__(self) -> None:
        for field in ("n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn", "vocab", "layer_bytes"):
            if getattr(self, field) <= 0:
                raise ValueError(f"model {self.name}: {field}={getattr(self, field)} must be positive")
        if self.n_layers * self.layer_bytes > self.total_bytes:
            raise ValueError(f"model {self.name}: {self.n_layers} layers exceed total_bytes={self.total_bytes}")

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
    """What a server knows of its machine: memory, page size and link.

    Compute constants belong to the world that needs them (``sim/compute``).
    """

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: int
    page_bytes: int
    link: LinkProfile

    def __post_init__(self) -> None:
        for field in ("hbm_bytes", "hbm_bytes_per_s", "page_bytes"):
            if getattr(self, field) <= 0:
                raise ValueError(f"hardware {self.name}: {field}={getattr(self, field)} must be positive")

"""Experts fetched after the router has asked for them: the layer waits for those that are not there."""

from __future__ import annotations

from functools import cache

from policies.types import NS_PER_S
from sim.compute.routing import Routing


class OnDemandExperts:
    """Experts of equal layers of which the ``n_resident`` used last are in HBM.

    In expectation every layer misses as many, so one is counted. Nothing is fetched ahead.

    Args:
        n_layers: layers with experts that may miss some.
        shard_bytes: of one expert on one rank.
        bytes_per_s: of the link.
    """

    def __init__(self, routing: Routing, *, n_layers: int, n_resident: int, shard_bytes: int, bytes_per_s: int) -> None:
        self._routing = routing
        self._n_layers = n_layers
        self._n_resident = n_resident
        self._shard = shard_bytes * NS_PER_S
        self._bytes_per_s = bytes_per_s
        self._stall_ns = cache(self._wait_ns)

    def n_missed(self, n_tokens: int) -> int:
        """Experts that each layer fetches in a step of so many tokens."""
        return self._routing.n_missed(n_tokens, self._n_resident)

    def stall_ns(self, n_tokens: int) -> int:
        """How long all layers together wait in a step of so many tokens."""
        return self._stall_ns(n_tokens)

    def _wait_ns(self, n_tokens: int) -> int:
        return self._n_layers * -(-self.n_missed(n_tokens) * self._shard // self._bytes_per_s)

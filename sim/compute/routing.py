"""Which experts the tokens of a step are routed to, in expectation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache


class Routing:
    """How often each expert of a layer is chosen: every token chooses a few different ones, independently of others.

    Args:
        shares: for each expert the probability that a token is routed to it; they sum to the experts a token has.

    Raises:
        ValueError: a share is outside [0, 1].
    """

    def __init__(self, shares: Sequence[float]) -> None:
        if not shares or not all(0 <= share <= 1 for share in shares):
            raise ValueError("routing: the share of every expert must be within [0, 1]")
        self._shares = tuple(shares)
        self._n_distinct = cache(self._expected_distinct)
        self._n_missed = cache(self._expected_missed)

    def n_distinct(self, n_tokens: int) -> int:
        """Different experts that so many tokens are routed to."""
        return self._n_distinct(n_tokens)

    def n_missed(self, n_tokens: int, n_resident: int) -> int:
        """Of these, experts that are not among the ``n_resident`` which were used last."""
        return self._n_missed(n_tokens, n_resident)

    def _expected_distinct(self, n_tokens: int) -> int:
        return round(sum(self._used(n_tokens)))

    def _expected_missed(self, n_tokens: int, n_resident: int) -> int:
        used = self._used(n_tokens)
        there = _resident(used, n_resident)
        return round(sum(share * (1 - here) for share, here in zip(used, there, strict=True)))

    def _used(self, n_tokens: int) -> list[float]:
        """For each expert the probability that a step of so many tokens uses it."""
        return [1 - (1 - share) ** n_tokens for share in self._shares]


def uniform(n_experts: int, n_active: int) -> Routing:
    """Every expert is as likely as any other: n tokens use E (1 - (1 - k/E)^n) of them."""
    return Routing([n_active / n_experts] * n_experts)


def zipf(n_experts: int, n_active: int, exponent: float) -> Routing:
    """The i-th expert is chosen in proportion to 1 / i^exponent, as far as a token can choose it once only.

    Raises:
        ValueError: the exponent is negative.
    """
    if exponent < 0:
        raise ValueError(f"routing: exponent={exponent} must not be negative")
    return by_weights([rank**-exponent for rank in range(1, n_experts + 1)], n_active)


def by_weights(weights: Sequence[float], n_active: int) -> Routing:
    """Experts are chosen in proportion to weights, such as counts of a histogram; no share exceeds 1.

    Raises:
        ValueError: a weight is negative, or fewer experts than a token needs have any.
    """
    if any(weight < 0 for weight in weights):
        raise ValueError("routing: a weight is negative")
    if sum(1 for weight in weights if weight) < n_active:
        raise ValueError(f"routing: fewer than n_active={n_active} experts have a weight")
    shares = [0.0] * len(weights)
    open_ones = {expert for expert, weight in enumerate(weights) if weight}
    n_left = float(n_active)
    while open_ones:
        scale = n_left / sum(weights[expert] for expert in open_ones)
        full = {expert for expert in open_ones if weights[expert] * scale >= 1}
        for expert in full or open_ones:
            shares[expert] = min(1.0, weights[expert] * scale)
        if not full:
            break
        n_left -= len(full)
        open_ones -= full
    return Routing(shares)


def _resident(used: Sequence[float], n_resident: int) -> list[float]:
    """For each expert the probability that it is among those used last, from how often steps use it.

    An expert stays for as many steps as it takes to use ``n_resident`` different ones (Che, Tung, Wang 2002); if one
    step uses more than that, a part of them stays.
    """
    n_used = sum(used)
    if n_used >= n_resident:
        return [share * n_resident / n_used for share in used]
    if n_resident >= sum(1 for share in used if share):
        return [float(share > 0) for share in used]
    low, high = 1.0, 2.0
    while _n_seen(used, high) < n_resident:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _n_seen(used, middle) < n_resident else (low, middle)
    return [1 - (1 - share) ** high for share in used]


def _n_seen(used: Sequence[float], n_steps: float) -> float:
    """Different experts used in so many steps."""
    return sum(1 - (1 - share) ** n_steps for share in used)

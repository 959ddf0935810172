"""How long prompts and outputs are: exact quantiles from counts of each length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

SHARES = (0.5, 0.9, 0.99)

ATOM_SHARE = 0.02
ATOM_PEAK = 10
NEIGHBOURS = 5
"""Lengths on each side with which one is compared."""


class LengthStatistics:
    """Token counts; what is kept is how often each was seen."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def add(self, n_tokens: int, count: int = 1) -> None:
        """Take one, or several alike."""
        if count:
            self._seen[n_tokens] += count

    def summary(self, scale: float = 1) -> dict[str, object]:
        """Mean, quantiles (the smallest length that this share does not exceed) and maximum, times ``scale``."""
        n = self._seen.total()
        if n == 0:
            return {}
        mean = sum(length * count for length, count in self._seen.items()) / n
        quantiles = {f"p{round(100 * share)}": self.quantile(share) * scale for share in SHARES}
        return {"mean": mean * scale, **quantiles, "max": max(self._seen) * scale}

    def quantile(self, share: float) -> int:
        """The smallest length that is at least as long as this share of all."""
        wanted = share * self._seen.total()
        reached = 0
        for length in sorted(self._seen):
            reached += self._seen[length]
            if reached >= wanted:
                return length
        return max(self._seen)

    def atoms(self) -> Iterator[tuple[int, float]]:
        """Lengths that stick out, with their share."""
        n = self._seen.total()
        for length, count in self._seen.most_common(20):
            near = [self._seen[length + step] for step in range(-NEIGHBOURS, NEIGHBOURS + 1) if step]
            if n >= 1000 and count > ATOM_SHARE * n and count > ATOM_PEAK * sum(near) / len(near):
                yield length, count / n

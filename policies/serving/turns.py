"""Which model runs next when several share one GPU in time."""

from __future__ import annotations

from policies.serving.tenancy import TemporalSharing


def choose(sharing: TemporalSharing, current: int | None, turn_ns: int, ready: list[bool]) -> int | None:
    """Choose who runs next.

    Args:
        current: the model whose turn it is, ``None`` at the start.
        turn_ns: how long its turn has lasted.
        ready: for each model whether it has work.

    Returns:
        The model, ``None`` if none has work.
    """
    if not any(ready):
        return None
    if current is not None and ready[current] and turn_ns < sharing.quantum_ns:
        return current
    n = len(ready)
    start = 0 if current is None else current + 1
    in_turn = [(start + i) % n for i in range(n) if ready[(start + i) % n]]
    if sharing.order == "priority":
        return max(in_turn, key=lambda model: sharing.priorities[model] or 0)
    return in_turn[0]

"""Random targets that a ledger can reach from where it is."""

from __future__ import annotations

from hypothesis import strategies as st

from policies.memory.residency import Loan, Residency, Target


@st.composite
def targets(draw: st.DrawFn, now: Residency, n_models: int) -> Target:
    """Some of the layers cycle through one or two slots; homes that are free then are lent."""
    returning = {layer for layer, _ in now.loading}
    layers = [layer for layer in range(now.n_layers) if layer not in returning]
    n_slots = draw(st.integers(1, 2))
    most = len(layers) - n_slots
    n_loans = draw(st.integers(0, max(0, most)))
    if n_loans == 0:
        return Target()
    cycling = sorted(draw(st.permutations(layers))[: n_loans + n_slots])
    kept = [loan for loan in now.loans if draw(st.booleans())][:n_loans]
    left = [home for layer in cycling if (home := now.homes[layer]) is not None]
    ended = [loan.home for loan in now.loans if loan not in kept]
    free = draw(st.permutations(left + ended))[: n_loans - len(kept)]
    granted = [Loan(home, draw(st.integers(0, n_models - 1))) for home in free]
    loans = (*kept, *granted)
    if not loans:
        return Target()
    return Target(cycling=tuple(cycling[: len(loans) + n_slots]), n_slots=n_slots, loans=loans)

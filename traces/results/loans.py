"""Loans of layers' homes as they begin and end, from the decisions of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policies.types import NS_PER_S
from traces.results.folder import RunTables

FLIP_NS = NS_PER_S
"""Ours: a home lent again within this time of its return should not have been returned."""


@dataclass(frozen=True, slots=True)
class Loan:
    """A loan of a home that begins or ends."""

    at_ns: int
    lender: int
    home: int
    begins: bool


def loans_of(run: RunTables) -> list[Loan]:
    """Find every loan that a decision ended or began, in this order within one decision.

    The run has kept its decisions.
    """
    found: list[Loan] = []
    for decisions in run.pieces("decisions", ("at_ns", "changed", "view", "targets")):
        for row in decisions["changed"].nonzero()[0].tolist():
            view, targets = json.loads(decisions["view"][row]), json.loads(decisions["targets"][row])
            found += _changes(int(decisions["at_ns"][row]), view["models"], targets)
    return found


def n_flips(loans: Sequence[Loan]) -> int:
    """Count loans that begin within ``FLIP_NS`` of the same home's return; a handover at one instant is none."""
    returned_ns: dict[tuple[int, int], int] = {}
    n = 0
    for loan in loans:
        home = (loan.lender, loan.home)
        if loan.begins:
            n += home in returned_ns and 0 < loan.at_ns - returned_ns[home] <= FLIP_NS
        else:
            returned_ns[home] = loan.at_ns
    return n


def _changes(at_ns: int, models: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]) -> list[Loan]:
    found: list[Loan] = []
    for lender, (model, target) in enumerate(zip(models, targets, strict=True)):
        before, after = _loans(model["residency"]["loans"]), _loans(target["loans"])
        found += [Loan(at_ns, lender, home, begins=False) for home, _ in sorted(before - after)]
        found += [Loan(at_ns, lender, home, begins=True) for home, _ in sorted(after - before)]
    return found


def _loans(loans: Sequence[Mapping[str, int]]) -> set[tuple[int, int]]:
    return {(loan["home"], loan["borrower"]) for loan in loans}

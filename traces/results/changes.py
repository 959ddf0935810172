"""What the decisions of a run changed: for each, how one model's memory was before and after."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from policies.decision import Reason
from policies.view import Ask
from traces.results.folder import RunTables

if TYPE_CHECKING:
    from enum import Enum

_COLUMNS = ("at_ns", "step", "ask", "asker", "reason", "n_short_blocks", "changed", "refused", "view", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a decision changed of one model, or that it was refused.

    Attributes:
        ask, reason: labels, as the table has them.
        asker: the model that was short, or that ran.
        lender: the model of which something changed; ``None`` if what was wanted did not fit.
        n_layers: layers of the lender; 0 without one, as all that follows.
        lent, returned: homes whose loan began and ended, each with its borrower.
        moved: layers that begin to take turns in slots, or cease to.
        n_lent: loans from then on.
        n_cycling, n_slots: layers that take turns from then on, and in how many slots.
    """

    at_ns: int
    step: int
    ask: str
    asker: int
    reason: str
    n_short_blocks: int
    lender: int | None
    n_layers: int = 0
    lent: tuple[tuple[int, int], ...] = ()
    returned: tuple[tuple[int, int], ...] = ()
    moved: tuple[int, ...] = ()
    n_lent: int = 0
    n_cycling: int = 0
    n_slots: int = 0


def changes_of(run: RunTables) -> Iterator[Change]:
    """Find what each decision changed, in order: one entry a model that it concerns, one for a refused decision.

    The run has kept its decisions.
    """
    for rows in run.pieces("decisions", _COLUMNS):
        for row in (rows["changed"] | rows["refused"]).nonzero()[0].tolist():
            asked: dict[str, Any] = {
                "at_ns": int(rows["at_ns"][row]),
                "step": int(rows["step"][row]),
                "ask": str(rows["ask"][row]),
                "asker": int(rows["asker"][row]),
                "reason": str(rows["reason"][row]),
                "n_short_blocks": int(rows["n_short_blocks"][row]),
            }
            if rows["refused"][row]:
                yield Change(lender=None, **asked)
            else:
                yield from _changes(asked, json.loads(rows["view"][row])["models"], json.loads(rows["targets"][row]))


def in_words(label: str, of: type[Enum]) -> str:
    """Say what a label means; one that this code does not know speaks for itself."""
    known = of.__members__.get(label.upper())
    return label.replace("_", " ") if known is None else str(known.value)


def what(change: Change, models: Sequence[str], cap: int | None) -> str:
    """Say in plain words what changed.

    Args:
        models: their names.
        cap: most layers that the lender may lend; ``None`` if the policy has no such setting.
    """
    if change.lender is None:
        return "changed nothing: what was wanted did not fit"
    lender = models[change.lender]
    now = f"{change.n_lent} lent now" + ("" if cap is None else f", cap {cap}")
    done: list[str] = []
    for borrower, n in Counter(borrower for _, borrower in change.lent).items():
        done.append(f"lent {_layers(n)} of {lender} to the KV cache of {models[borrower]}")
    for borrower, n in Counter(borrower for _, borrower in change.returned).items():
        done.append(f"gave {_layers(n)} of {lender} back from {models[borrower]}")
    if not done:
        return f"{_layers(change.n_cycling)} of {lender} take turns in {change.n_slots} slots from now on; {now}"
    return f"{' and '.join(done)}; {now}"


def why(change: Change, models: Sequence[str]) -> str:
    """Say in plain words why."""
    reason, asker = in_words(change.reason, Reason), models[change.asker]
    match change.ask:
        case "running_short" | "waiting_short":
            who = "a running request" if change.ask == "running_short" else "the first waiting request"
            blocks = f"{change.n_short_blocks:,} block{'s' * (change.n_short_blocks != 1)} short"
            return f"KV exhausted: {who} of {asker} is {blocks}; {reason}"
        case "activate":
            return f"{asker} takes its turn; {reason}"
        case "idle":
            return f"{in_words(change.ask, Ask)}; {reason}"
        case _:
            return reason


def _layers(n: int) -> str:
    return f"{n} layer{'s' * (n != 1)}"


def _changes(
    asked: Mapping[str, Any], models: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]
) -> Iterator[Change]:
    for lender, (model, target) in enumerate(zip(models, targets, strict=True)):
        now = model["residency"]
        before, after = _loans(now["loans"]), _loans(target["loans"])
        cycles = [layer for layer, home in enumerate(now["homes"]) if home is None]
        is_same_cycle = (cycles, len(now["slots"])) == (list(target["cycling"]), target["n_slots"])
        if before == after and (is_same_cycle or now["loading"]):
            continue
        yield Change(
            lender=lender,
            n_layers=len(now["homes"]),
            lent=tuple(loan for loan in after if loan not in before),
            returned=tuple(loan for loan in before if loan not in after),
            moved=tuple(sorted({*cycles} ^ {*target["cycling"]})),
            n_lent=len(after),
            n_cycling=len(target["cycling"]),
            n_slots=target["n_slots"],
            **asked,
        )


def _loans(loans: Sequence[Mapping[str, int]]) -> list[tuple[int, int]]:
    return [(loan["home"], loan["borrower"]) for loan in loans]

"""Why a simulation is off: steps of the same kind beside each other, and what each kind contributes.

Steps are put into classes by model, new prompt tokens and decoding sequences, both by
powers of two. While requests are there a server goes from step to step, so a step counts
from the end of the one before: what lies between two steps is host time of the real run
(scheduling in Python); in the simulation it is within the step. The difference of the two
runs' busy time then falls apart without a rest::

    by pace     steps of the real run x (simulated mean - real mean), class by class
    by number   (simulated number - real number) x simulated mean
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traces.results.folder import RunTables

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

NS_PER_MS = 10**6

Kind = tuple[int, int, int]
"""Model, least prompt tokens and least decoding sequences of a class: 0 or a power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAKind:
    """The steps of one class in one run: how many, and their means.

    Attributes:
        mean_ns: from the end of the step before, or from its own start if nobody was waiting then.
        between_ns: of this, before it started.
        stall_ns: of this, waiting for memory that was not in place.
    """

    n: int
    mean_ns: float
    between_ns: float
    stall_ns: float


NONE = OfAKind(n=0, mean_ns=0.0, between_ns=0.0, stall_ns=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One class in both runs, and what it contributes to the difference of their busy time."""

    kind: Kind
    real: OfAKind
    simulated: OfAKind

    @property
    def by_pace_ns(self) -> float:
        """Because steps of this kind take longer or shorter; nothing where one of the runs has none."""
        return self.real.n * (self.simulated.mean_ns - self.real.mean_ns) if self.real.n and self.simulated.n else 0.0

    @property
    def by_number_ns(self) -> float:
        """Because there are more or fewer of them."""
        mean_ns = self.simulated.mean_ns if self.simulated.n else self.real.mean_ns
        return (self.simulated.n - self.real.n) * mean_ns

    @property
    def weight_ns(self) -> float:
        """How much it matters, whichever way."""
        return abs(self.by_pace_ns) + abs(self.by_number_ns)


def causes(real: RunTables, simulated: RunTables) -> list[Cause]:
    """Match the steps of two runs, class by class, those that contribute most first.

    Raises:
        ValueError: one of the runs has kept no steps.
    """
    its, ours = _by_kind(real), _by_kind(simulated)
    found = [Cause(kind=kind, real=its.get(kind, NONE), simulated=ours.get(kind, NONE)) for kind in {*its, *ours}]
    return sorted(found, key=lambda cause: (-cause.weight_ns, cause.kind))


def _by_kind(run: RunTables) -> dict[Kind, OfAKind]:
    if "steps" not in run.kept:
        raise ValueError(f"{run.folder} has kept no steps; run it with tables that have them, or without --explain")
    names = ("model", "start_ns", "end_ns", "n_prefill_tokens", "n_decode_seqs", "stall_ns")
    steps = run.columns("steps", names)
    order = np.argsort(steps["start_ns"], kind="stable")
    model, start_ns, end_ns, n_prompt, n_decodes, stall_ns = (steps[name][order] for name in names)
    between_ns = _between_ns(run, start_ns, end_ns)
    kinds, of_a_step = np.unique(
        np.stack([model, _power_of_two(n_prompt), _power_of_two(n_decodes)]), axis=1, return_inverse=True
    )
    n = np.bincount(of_a_step)
    means = [
        np.bincount(of_a_step, weights=values) / n for values in (end_ns - start_ns + between_ns, between_ns, stall_ns)
    ]
    return {
        (int(kinds[0, at]), int(kinds[1, at]), int(kinds[2, at])): OfAKind(
            n=int(n[at]), mean_ns=float(means[0][at]), between_ns=float(means[1][at]), stall_ns=float(means[2][at])
        )
        for at in range(len(n))
    }


def _between_ns(run: RunTables, start_ns: Ints, end_ns: Ints) -> Ints:
    """Time from the end of the step before to the start of each; 0 if no request was there at that end."""
    requests = run.columns("requests", ("arrival_ns", "finish_ns", "outcome"))
    came = np.sort(requests["arrival_ns"])
    left = np.sort(requests["finish_ns"][requests["outcome"] == "finished"])
    before_ns = end_ns[:-1]
    n_there = np.searchsorted(came, before_ns, side="right") - np.searchsorted(left, before_ns, side="right")
    between_ns = np.zeros_like(start_ns)
    between_ns[1:] = np.where(n_there > 0, np.maximum(start_ns[1:] - before_ns, 0), 0)
    return between_ns


def _power_of_two(counts: Ints) -> Ints:
    """The greatest power of two that is not above; 0 stays."""
    return np.where(counts > 0, 2 ** np.floor(np.log2(np.maximum(counts, 1))).astype(np.int64), 0)


def table(found: Sequence[Cause], models: Sequence[str], host_ns: Sequence[Sequence[int]], n_lines: int = 24) -> str:
    """The classes that matter most, then what all of them come to.

    Args:
        host_ns: for each of ``found`` what the compute model says of the host at the class's smallest and largest step.
    """
    lines = [
        "Steps from the end of the one before, ms; host: between steps (real), by the model (simulated)",
        f"{'model':16} {'prompt':>8} {'decode':>7} {'steps':>15} {'mean':>17} {'host':>17} {'stall':>15} "
        f"{'by pace':>9} {'by number':>9}",
    ]
    for cause, hosts in list(zip(found, host_ns, strict=True))[:n_lines]:
        model, n_prompt, n_decodes = cause.kind
        its, ours = cause.real, cause.simulated
        lines.append(
            f"{models[model][:16]:16} {_range(n_prompt):>8} {_range(n_decodes):>7} {its.n:>7}/{ours.n:<7} "
            f"{_ms(its.mean_ns):>8}/{_ms(ours.mean_ns):<8} {_ms(its.between_ns):>5}/{'-'.join(map(_ms, hosts)):<11} "
            f"{_ms(its.stall_ns):>7}/{_ms(ours.stall_ns):<7} {_ms(cause.by_pace_ns):>9} {_ms(cause.by_number_ns):>9}"
        )
    busy_ns = sum(cause.real.n * cause.real.mean_ns for cause in found)
    for name, contributed_ns in (
        ("by pace", sum(cause.by_pace_ns for cause in found)),
        ("by number", sum(cause.by_number_ns for cause in found)),
    ):
        lines.append(f"{name}: {_ms(contributed_ns)} ms, {contributed_ns / busy_ns:+.2%} of the real run's busy time")
    between_ns = sum(cause.real.n * cause.real.between_ns for cause in found)
    lines.append(f"between steps: {_ms(between_ns)} ms of the real run, {between_ns / busy_ns:.2%} of its busy time")
    return "\n".join(line.rstrip() for line in lines)


def _range(least: int) -> str:
    return "0" if not least else (str(least) if least == 1 else f"{least}-{2 * least - 1}")


def _ms(ns: float) -> str:
    return f"{ns / NS_PER_MS:.2f}" if abs(ns) < 1000 * NS_PER_MS else f"{ns / NS_PER_MS:.0f}"

"""A backend driven by hand: no engine, no scheduler, no policy."""

from __future__ import annotations

from dataclasses import dataclass

from policies.backend import Backend, Batch, Change, StepReport
from policies.memory.ledger import Ledger
from policies.memory.residency import Loan, Target
from policies.remap.which_layers import nested_order
from policies.types import Work
from tests.engine.null_backend import Pace
from tests.engine.worlds import Setup, TinyModel, World, open_scene

FAR_NS = 10**9


@dataclass(slots=True)
class Bench:
    """A backend with its ledger and nothing else: two models of six layers."""

    backend: Backend
    ledger: Ledger

    def lend(self, n_loans: int, n_slots: int = 1) -> None:
        """Let model 0 lend ``n_loans`` homes to model 1, or take them all back."""
        order = nested_order(6)
        loans = tuple(Loan(home, 1) for home in order[2 : 2 + n_loans])
        cycling = tuple(sorted((*order[:n_slots], *(loan.home for loan in loans)))) if loans else ()
        target = Target(cycling=cycling, n_slots=n_slots if loans else 0, loans=loans)
        plan = self.ledger.plan([target, Target()], _nothing_referenced)
        self.backend.apply(Change(plan.ops))
        self.ledger.commit(plan)

    def settle(self) -> list[int]:
        """Wait until every load has landed; the layers in the order in which they were told."""
        told: list[int] = []
        while self.ledger.residencies[0].loading:
            self.backend.advance(self.backend.now_ns + 1)
            for model, layer in self.backend.landed():
                told.append(layer)
                self.backend.apply(Change(self.ledger.land(model, layer)))
        return told

    def finish(self, until_ns: int | None = None) -> StepReport:
        """The next report, which must be there."""
        report = self.backend.advance(until_ns)
        assert report is not None
        return report

    def run(self, work: Work, n_steps: int, leap: int) -> list[tuple[int, int, int, int]]:
        """``n_steps`` decode steps on lane 0, at most ``leap`` a submission: (end, compute, stall, rest) of each."""
        rows: list[tuple[int, int, int, int]] = []
        while len(rows) < n_steps:
            self.backend.submit(0, decode(work, len(rows)), min(leap, n_steps - len(rows)), FAR_NS)
            report = self.finish()
            rows += zip(report.ends_ns, report.compute_ns, report.stall_ns, report.rest_ns, strict=True)
            for model, layer in self.backend.landed():
                self.backend.apply(Change(self.ledger.land(model, layer)))
        return rows


def _nothing_referenced(_lender: int, _home: int) -> int:
    return 0


def decode_work(n_seqs: int = 2, n_context: int = 20) -> Work:
    return Work(
        n_prefill_tokens=0,
        n_prefill_seqs=0,
        prefill_pairs=0,
        n_decode_seqs=n_seqs,
        decode_context_tokens=n_context,
        n_sampled=n_seqs,
    )


def decode(work: Work, nth: int = 0, *, swap_in: int = 0, swap_out: int = 0) -> Batch:
    """The ``nth`` repetition of a decode step."""
    n_context = work.decode_context_tokens + nth * work.n_decode_seqs
    now = decode_work(work.n_decode_seqs, n_context)
    return Batch(work=now, swap_in_bytes=swap_in, swap_out_bytes=swap_out)


def prefill() -> Batch:
    work = Work(
        n_prefill_tokens=5, n_prefill_seqs=1, prefill_pairs=15, n_decode_seqs=0, decode_context_tokens=0, n_sampled=1
    )
    return Batch(work=work)


def open_bench(world: World, pace: Pace | None = None) -> Bench:
    models = (TinyModel(n_layers=6), TinyModel(n_layers=6))
    scene = open_scene(Setup(models=models, world=world, pace=pace or Pace()))
    return Bench(scene.backend, scene.ledger)

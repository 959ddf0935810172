"""All that is decided follows from the reports: fed with them, a world without a device decides the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from policies.backend import Batch, Change, StepReport
from policies.engine import Outcome
from policies.mirage import Mirage
from policies.recompute import Recompute
from policies.serving.tenancy import TemporalSharing
from policies.swap import Swap
from policies.types import Arrival
from tests.engine.page_table import PageTable
from tests.engine.recorder import Recorder
from tests.engine.worlds import arrival
from tests.executor.backend.stage import LENDS_FREELY, Record, Setting, burst, make_engine, open_books, serve


@dataclass(slots=True)
class Replayed:
    """Takes as long as a recorded run took; a page table stands for the device."""

    table: PageTable
    reports: Iterator[StepReport]
    told: Iterator[tuple[tuple[int, int], ...]]
    now_ns: int = 0
    batches: list[tuple[int, Batch]] = field(default_factory=list[tuple[int, Batch]])

    def apply(self, change: Change) -> None:
        for op in change.ops:
            self.table.carry_out(op)

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        del n_steps, stop_ns, n_ahead  # the report knows
        assert all(self.table.is_mapped(lane, block) for seq, _ in batch.rows for block in seq.blocks)
        self.batches.append((lane, batch))

    def advance(self, until_ns: int | None) -> StepReport | None:
        if until_ns is not None:
            self.now_ns = until_ns
            return None
        report = next(self.reports)
        assert report.lane == self.batches[-1][0]
        assert report.start_ns == self.now_ns
        self.now_ns = report.ends_ns[-1]
        return report

    def landed(self) -> tuple[tuple[int, int], ...]:
        landed = next(self.told)
        for model, layer in landed:
            self.table.land(model, layer)
        return landed


def decided(setting: Setting, record: Record, arrivals: list[Arrival]) -> Recorder:
    """Serve the requests again with the recorded times."""
    ledger, lanes = open_books(setting)
    table, journal = PageTable(ledger, [lane.layout for lane in lanes]), Recorder()
    backend = Replayed(table, iter(record.reports), iter(record.landed))
    assert make_engine(setting, ledger, lanes, backend, journal).run(iter(arrivals)) is Outcome.DONE
    return journal


def trickle(n_requests: int = 12) -> list[Arrival]:
    """Requests that come one after the other while others run."""
    return [
        arrival(number, number * 20_000_000, n_prompt=60, n_output=30, model=number % 3 % 2)
        for number in range(n_requests)
    ]


@pytest.mark.parametrize(
    ("setting", "arrivals"),
    [
        pytest.param(Setting(), burst(), id="lending without bounds"),
        pytest.param(Setting(policy=replace(LENDS_FREELY, activation="migrate")), burst(), id="migrating"),
        pytest.param(
            Setting(policy=Mirage(inactive_bound="cap"), tenancy=TemporalSharing(quantum_s=0.03)),
            trickle(),
            id="lending by measured times, in turns of a quantum",
        ),
        pytest.param(Setting(policy=Swap(), tenancy=TemporalSharing(quantum_s=0.03)), trickle(), id="swapping"),
        pytest.param(Setting(policy=Recompute()), burst(), id="recomputing"),
    ],
)
def test_a_world_fed_with_the_reports_of_a_run_takes_its_decisions(setting: Setting, arrivals: list[Arrival]) -> None:
    record, journal, _ = serve(setting, arrivals)
    again = decided(setting, record, arrivals)
    assert again.decisions == journal.decisions
    assert again.compositions == journal.compositions
    assert again.requests == journal.requests
    assert again.steps == journal.steps

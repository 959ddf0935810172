"""When a policy is asked, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pytest

from policies.decision import Decision, Reason
from policies.engine import Outcome
from policies.memory.residency import Loan, Target
from policies.mirage import Mirage
from policies.serving.estimates import StepEstimates
from policies.serving.scheduler import Preemption
from policies.serving.tenancy import TemporalSharing
from policies.types import NS_PER_S, Arrival
from policies.view import Ask, MemoryView
from tests.engine.null_backend import Pace
from tests.engine.recorder import Decided, Recorder
from tests.engine.worlds import SERVING, Setup, TinyModel, arrival, serve

SYNC = replace(SERVING, async_output=False, watermark=0)
LENT = Target(cycling=(0, 1), n_slots=1, loans=(Loan(1, 0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """Wants the last model to lend its home 1 when it is asked ``lends_on``, and nothing lent when ``restores_on``."""

    lends: ClassVar[bool] = True
    needs_requests: bool = False
    preemption: Preemption = "recompute"
    keeps_kv_on_host: bool = False
    lends_on: frozenset[Ask] = frozenset()
    restores_on: frozenset[Ask] = frozenset()
    quiet_steps: int = 1

    def decide(self, view: MemoryView) -> Decision:
        targets = [model.residency.wanted for model in view.models]
        if view.ask in self.lends_on:
            targets[-1] = LENT
        if view.ask in self.restores_on:
            targets[-1] = Target()
        return Decision(targets=tuple(targets), reason=Reason.NOTHING, quiet_steps=self.quiet_steps)


def asked(recorder: Recorder, ask: Ask) -> list[Decided]:
    return [each for each in recorder.decisions if each.view.ask is ask]


def one_that_waits() -> list[Arrival]:
    """In a pool of nine blocks the third finds at most seven free while one of the others is there, and needs eight."""
    return [
        arrival(0, n_prompt=4, n_output=20),
        arrival(1, n_prompt=1, n_output=12),
        arrival(2, 1, n_prompt=32, n_output=1),
    ]


NINE_BLOCKS = TinyModel(n_base_blocks=9)


@pytest.mark.parametrize("leaps", [True, False])
def test_a_no_holds_for_as_many_steps_as_it_says(leaps: bool) -> None:
    setup = Setup(policy=Scripted(quiet_steps=3), models=(NINE_BLOCKS,), serving=SYNC, leaps=leaps)
    arrivals = [arrival(0, n_prompt=8, n_output=12), arrival(1, 1, n_prompt=32, n_output=1)]
    steps = [each.view.step for each in asked(serve(setup, arrivals)[1], Ask.WAITING_SHORT)]
    assert len(steps) > 2
    assert {after - before for before, after in pairwise(steps)} == {3}


@pytest.mark.parametrize("leaps", [True, False])
def test_when_requests_end_what_was_refused_is_asked_again(leaps: bool) -> None:
    setup = Setup(policy=Scripted(quiet_steps=1000), models=(NINE_BLOCKS,), serving=SYNC, leaps=leaps)
    _, recorder = serve(setup, one_that_waits())
    (short,) = [request for request in recorder.requests if request.request_id == 1]
    instants = [each.at_ns for each in asked(recorder, Ask.WAITING_SHORT)]
    assert instants[1:] == [short.finish_ns]


def test_when_a_load_has_landed_what_was_refused_is_asked_again() -> None:
    policy = Scripted(lends_on=frozenset({Ask.WAITING_SHORT}), restores_on=frozenset({Ask.EASE}), quiet_steps=1000)
    models = (NINE_BLOCKS, TinyModel(layer_pages=1))  # a home holds one block
    setup = Setup(policy=policy, models=models, serving=SYNC, pace=Pace(load_ns=300), leaps=False)
    _, recorder = serve(setup, [*one_that_waits()[:2], arrival(2, 1, n_prompt=36, n_output=1)])
    lent, refused, again, *_ = (each for each in asked(recorder, Ask.WAITING_SHORT) if each.changed or each.refused)
    assert (lent.changed, refused.refused, again.changed) == (True, True, True)
    loading = [(at_ns, use.loading_bytes) for at_ns, use in recorder.memory if use.model == 1]
    assert again.at_ns == next(at_ns for at_ns, n_bytes in loading if at_ns > refused.at_ns and not n_bytes)


def test_a_model_that_takes_its_turn_is_asked_about_once_while_anything_is_lent() -> None:
    policy = Scripted(lends_on=frozenset({Ask.WAITING_SHORT}))
    tenancy = TemporalSharing(quantum_s=300 / NS_PER_S)
    setup = Setup(policy=policy, models=(NINE_BLOCKS, TinyModel()), serving=SYNC, tenancy=tenancy)
    arrivals = [*one_that_waits(), arrival(3, 2, n_output=12, model=1)]
    _, recorder = serve(setup, arrivals)
    lanes = [(step.lane, step.start_ns) for step in recorder.steps]
    switches = [(lane, at_ns) for (before, _), (lane, at_ns) in pairwise(lanes) if lane != before]
    lent_ns = next(each.at_ns for each in recorder.decisions if each.changed)
    activations = [(each.view.asker, each.at_ns) for each in asked(recorder, Ask.ACTIVATE)]
    assert activations == [(lane, at_ns) for lane, at_ns in switches if at_ns > lent_ns]
    assert activations


def test_while_no_model_has_work_everything_comes_back() -> None:
    policy = Mirage(inactive_bound="cap", lend_from="inactive", hysteresis_steps=1000)
    models = (TinyModel(n_base_blocks=5), TinyModel(n_layers=6))
    setup = Setup(policy=policy, models=models, serving=SYNC)
    _, recorder = serve(setup, [arrival(0, n_prompt=12, n_output=12), arrival(1, n_output=16), arrival(2, 90_000)])
    busy = [use.lent_bytes for at_ns, use in recorder.memory if use.model == 1 and at_ns < 10_000]
    assert max(busy) > 0
    assert busy[-1] == 0
    assert all(each.view.ask is Ask.IDLE for each in recorder.decisions if each.decision.reason is Reason.REVERT)
    at_ns, last = [(at_ns, use) for at_ns, use in recorder.memory if use.model == 1][-1]
    assert (last.lent_bytes, last.loading_bytes, last.slot_bytes) == (0, 0, 0)
    assert at_ns == 90_000  # published before a step was composed for the next request


def test_a_model_that_waits_for_bytes_that_others_hold_goes_on_when_they_are_free() -> None:
    serving = replace(SYNC, share_idle_kv=True)
    setup = Setup(models=(TinyModel(n_base_blocks=4), TinyModel(n_base_blocks=4)), serving=serving)
    outcome, recorder = serve(setup, [arrival(0, n_prompt=25, n_output=6), arrival(1, 1, n_prompt=12, model=1)])
    assert outcome is Outcome.DONE
    assert [request.request_id for request in recorder.requests] == [0, 1]


def test_a_policy_is_told_the_compute_time_of_decode_steps_without_their_waits() -> None:
    policy = Scripted(lends_on=frozenset({Ask.WAITING_SHORT}))
    setup = Setup(policy=policy, models=(NINE_BLOCKS,), serving=SYNC, pace=Pace(fetch_ns=5000))
    _, recorder = serve(setup, one_that_waits())
    assert max(step.stall_ns for step in recorder.steps) > 1000
    for each in recorder.decisions:
        (model,) = each.view.models
        expected = StepEstimates()
        for step in recorder.steps:
            if step.end_ns <= each.at_ns and not step.n_prefill_tokens:
                expected.saw_decodes(step.n_decode_seqs, [step.compute_ns], [step.rest_ns])
        assert model.decode_ns == expected.decode_ns(model.n_running)
        assert model.rest_ns == expected.rest_ns(model.n_running)
    assert recorder.decisions[-1].view.models[0].decode_ns is not None

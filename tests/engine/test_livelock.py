"""No policy, and no way of serving, keeps the loop from coming to an end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from policies.decision import Decision, Reason
from policies.engine import Outcome
from policies.memory.residency import Loan, Target
from policies.mirage import Mirage
from policies.serving.scheduler import Preemption
from policies.serving.tenancy import TemporalSharing
from policies.types import NS_PER_S
from policies.view import MemoryView
from tests.engine.null_backend import Pace
from tests.engine.worlds import SERVING, Setup, TinyModel, arrival, serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Restless:
    """Lends a home of the last model where none is lent, takes it back where one is, whatever it is asked."""

    lends: ClassVar[bool] = True
    needs_requests: bool = False
    preemption: Preemption = "recompute"

    def decide(self, view: MemoryView) -> Decision:
        lender = len(view.models) - 1
        targets = [Target() for _ in view.models]
        if not view.models[lender].residency.loans:
            targets[lender] = Target(cycling=(0, 1), n_slots=1, loans=(Loan(1, 0),))
        return Decision(targets=tuple(targets), reason=Reason.NOTHING)


@pytest.mark.parametrize("n_models", [1, 2, 3])
def test_a_policy_that_never_rests_is_asked_only_so_often_at_one_instant(n_models: int) -> None:
    models = (TinyModel(n_base_blocks=5),) * n_models
    setup = Setup(policy=Restless(), models=models, pace=Pace(load_ns=1))
    arrivals = [arrival(i, 300 * (i // 3), n_prompt=7, n_output=9, model=i % n_models) for i in range(9)]
    outcome, recorder = serve(setup, arrivals)
    assert outcome is Outcome.DONE
    instants = [(each.at_ns, each.view.step) for each in recorder.decisions if each.changed]
    assert max(instants.count(instant) for instant in {*instants}) <= 4 * 4 * n_models


def test_a_prompt_that_fills_the_pool_chunk_by_chunk_and_preempts_itself_ends_the_run() -> None:
    # vLLM 0.7.3 wants a free block before each chunk that begins in the midst of one; there is none, for ever.
    serving = replace(SERVING, chunked_prefill=True, max_num_batched_tokens=6, watermark=0)
    setup = Setup(models=(TinyModel(n_base_blocks=4),), serving=serving)
    outcome, recorder = serve(setup, [arrival(0, n_prompt=15, n_output=2), arrival(1, 500, n_prompt=3)])
    assert outcome is Outcome.STUCK
    assert [request.request_id for request in recorder.requests] == [1]  # it overtook while the first was thrown out


def test_a_run_with_something_still_to_come_does_not_give_up() -> None:
    serving = replace(SERVING, chunked_prefill=True, max_num_batched_tokens=6, watermark=0)
    setup = Setup(models=(TinyModel(n_base_blocks=4), TinyModel()), serving=serving)
    late = arrival(1, 200_000, model=1)
    outcome, recorder = serve(setup, [arrival(0, n_prompt=15, n_output=2), late])
    assert outcome is Outcome.STUCK
    assert [request.request_id for request in recorder.requests] == [1]


def test_two_models_that_throw_each_other_out_before_a_token_comes_end_the_run() -> None:
    serving = replace(SERVING, chunked_prefill=True, max_num_batched_tokens=4)
    policy = Mirage(activation="preempt_borrower", inactive_bound="cap", active_bound="no_stall")
    setup = Setup(
        policy=policy,
        models=(TinyModel(n_base_blocks=4, n_layers=6), TinyModel(n_base_blocks=4, n_layers=6)),
        serving=serving,
        tenancy=TemporalSharing(quantum_s=1 / NS_PER_S),
        pace=Pace(fetch_ns=200),
    )
    outcome, _ = serve(setup, [arrival(0, n_prompt=12), arrival(1, n_prompt=12, model=1)])
    assert outcome in (Outcome.DONE, Outcome.STUCK)

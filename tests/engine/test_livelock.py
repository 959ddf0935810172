"""No policy, and no way of serving, keeps the loop from coming to an end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from policies.decision import Decision, Reason
from policies.engine import Outcome
from policies.memory.residency import Loan, Target
from policies.policy import Policy
from policies.serving.scheduler import Preemption
from policies.view import Ask, MemoryView
from tests.engine.worlds import SERVING, Setup, TinyModel, arrival, serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Restless:
    """Passes a home of the last model round all borrowers, which costs no time, whatever it is asked."""

    lends: ClassVar[bool] = True
    needs_requests: bool = False
    preemption: Preemption = "recompute"
    keeps_kv_on_host: bool = False

    def decide(self, view: MemoryView) -> Decision:
        loans = view.models[-1].residency.loans
        borrower = (loans[0].borrower + 1) % len(view.models) if loans else 0
        targets = [Target() for _ in view.models]
        targets[-1] = Target(cycling=(0, 1), n_slots=1, loans=(Loan(1, borrower),))
        return Decision(targets=tuple(targets), reason=Reason.NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruthless:
    """Lends a home once and from then on wants a request preempted that is not there."""

    lends: ClassVar[bool] = True
    needs_requests: bool = False
    preemption: Preemption = "recompute"
    keeps_kv_on_host: bool = False

    def decide(self, view: MemoryView) -> Decision:
        targets = [model.residency.wanted for model in view.models]
        targets[-1] = Target(cycling=(0, 1), n_slots=1, loans=(Loan(1, 0),))
        is_composing = view.ask in (Ask.RUNNING_SHORT, Ask.WAITING_SHORT)
        return Decision(targets=tuple(targets), reason=Reason.NOTHING, preempt=() if is_composing else (999,))


@pytest.mark.parametrize("policy", [Restless(), Ruthless()])
@pytest.mark.parametrize("n_models", [2, 3])
def test_a_policy_that_never_rests_is_asked_only_so_often_at_one_instant(policy: Policy, n_models: int) -> None:
    setup = Setup(policy=policy, models=(TinyModel(n_base_blocks=5),) * n_models)
    arrivals = [arrival(i, 5000 * (i // 6), n_prompt=7, n_output=9, model=i % n_models) for i in range(18)]
    outcome, recorder = serve(setup, arrivals)
    assert outcome is Outcome.DONE
    at_rest = [each for each in recorder.decisions if each.changed and each.view.ask is Ask.IDLE]
    assert at_rest
    instants = [each.at_ns for each in recorder.decisions if each.changed]
    n_layers = 4 * n_models
    assert max(instants.count(instant) for instant in {*instants}) == 4 * n_layers


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

"""Small parts of the loop by themselves: whose turn it is, estimates, what a step computes, when tokens came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.backend import StepReport
from policies.decision import Reason
from policies.journal import GapCause
from policies.lane import batch_of
from policies.mirage import Mirage
from policies.serving.estimates import StepEstimates
from policies.serving.scheduler import Prefill, Step
from policies.serving.sequence import Sequence
from policies.serving.tenancy import TemporalSharing
from policies.serving.tokens import TokenClock
from policies.serving.turns import choose
from policies.types import NS_PER_S
from policies.view import Ask
from tests.engine.recorder import Recorder
from tests.engine.worlds import arrival
from tests.policies.script import Script

QUANTUM_NS = 100


def round_robin() -> TemporalSharing:
    return TemporalSharing(quantum_s=QUANTUM_NS / NS_PER_S)


@given(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.integers(0, 3) | st.none(),
    st.integers(0, 2 * QUANTUM_NS),
    st.sampled_from(["round_robin", "priority"]),
)
def test_the_gpu_idles_only_if_no_model_is_ready(
    ready: list[bool], current: int | None, turn_ns: int, order: str
) -> None:
    priorities = tuple(range(len(ready)))
    sharing = TemporalSharing(
        quantum_s=QUANTUM_NS / NS_PER_S,
        order="priority" if order == "priority" else "round_robin",
        priorities=priorities,
    )
    current = None if current is None or current >= len(ready) else current
    chosen = choose(sharing, current, turn_ns, ready)
    assert (chosen is None) == (not any(ready))
    assert chosen is None or ready[chosen]


def test_a_turn_lasts_until_its_quantum_or_until_the_model_has_nothing_to_run() -> None:
    sharing = round_robin()
    assert choose(sharing, 0, QUANTUM_NS - 1, [True, True]) == 0
    assert choose(sharing, 0, QUANTUM_NS, [True, True]) == 1
    assert choose(sharing, 0, 0, [False, True]) == 1
    assert choose(sharing, 0, QUANTUM_NS, [True, False]) == 0


def test_turns_go_round_and_skip_who_is_not_ready() -> None:
    turns = [0]
    for _ in range(5):
        chosen = choose(round_robin(), turns[-1], QUANTUM_NS, [True, False, True, True])
        assert chosen is not None
        turns.append(chosen)
    assert turns == [0, 2, 3, 0, 2, 3]


def test_equal_priorities_take_turns_and_lower_ones_wait() -> None:
    sharing = TemporalSharing(quantum_s=1, order="priority", priorities=(1, 0, 1))
    assert choose(sharing, 0, NS_PER_S, [True, True, True]) == 2
    assert choose(sharing, 2, NS_PER_S, [True, True, True]) == 0
    assert choose(sharing, 2, NS_PER_S, [False, True, True]) == 2


@pytest.mark.parametrize("priorities", [(), (1, None)])
def test_turns_by_priority_need_one_for_every_model(priorities: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="needs a priority for every model"):
        TemporalSharing(quantum_s=1, order="priority", priorities=priorities)


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_an_estimate_stays_within_what_was_measured(values_ns: list[int]) -> None:
    estimates = StepEstimates()
    for value_ns in values_ns:
        estimates.saw_decodes(4, [value_ns], [0])
    decode_ns = estimates.decode_ns(4)
    assert decode_ns is not None
    assert min(values_ns) <= decode_ns <= max(values_ns)


@given(st.lists(st.integers(0, 10**6), min_size=2), st.data())
def test_steps_told_together_give_the_estimate_of_steps_told_one_by_one(
    values_ns: list[int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(values_ns)))
    together, apart = StepEstimates(), StepEstimates()
    for part in (values_ns[:cut], values_ns[cut:]):
        together.saw_decodes(3, part, part)
    for value_ns in values_ns:
        apart.saw_decodes(3, [value_ns], [value_ns])
    assert (together.decode_ns(3), together.rest_ns(3)) == (apart.decode_ns(3), apart.rest_ns(3))


def test_another_batch_size_does_not_look_like_another_speed() -> None:
    estimates = StepEstimates()
    estimates.saw_decodes(1, [100] * 50, [1])
    estimates.saw_decodes(64, [900], [1])
    assert estimates.decode_ns(1) == 100
    assert estimates.decode_ns(100) == 900
    assert estimates.decode_ns(2) == 100  # never seen: the nearest power of two


def test_nothing_is_estimated_before_it_was_measured() -> None:
    estimates = StepEstimates()
    assert (estimates.decode_ns(1), estimates.prefill_ns, estimates.rest_ns(1)) == (None, None, 0)


def test_the_prefill_estimate_is_that_of_a_prompt_of_mean_length() -> None:
    estimates = StepEstimates()
    estimates.saw_prefill([1000], 5000)
    for _ in range(9):
        estimates.saw_prefill([10], 70)
    assert estimates.prefill_ns == 70  # 109 tokens on average: nearer to 10 than to 1000 in powers of two


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 40))
def test_a_prefill_pairs_each_new_token_with_all_before_it_cached_ones_included(
    n_computed: int, n_new: int, n_cached: int
) -> None:
    seq = Sequence(arrival(0, n_prompt=120).request)
    seq.n_computed = n_computed
    step = Step(prefills=[Prefill(seq, n_new, n_cached, samples=False)])
    pairs = sum(n_computed + n_cached + nth + 1 for nth in range(n_new))
    assert batch_of(step, n_swapped_out=0, block_bytes=1).work.prefill_pairs == pairs


def test_a_step_adds_up_what_its_rows_compute() -> None:
    seqs = [Sequence(arrival(i, n_prompt=10 * (i + 1)).request) for i in range(3)]
    seqs[1].n_output = 5
    prefills = [Prefill(seqs[2], 7, 0, samples=True)]
    step = Step(prefills=prefills, decodes=[seqs[0], seqs[1]])
    step.n_swapped_in, step.n_swapped_out = 2, 9
    batch = batch_of(step, n_swapped_out=3, block_bytes=100)
    work = batch.work
    assert (work.n_prefill_tokens, work.n_prefill_seqs, work.n_decode_seqs) == (7, 1, 2)
    assert work.decode_context_tokens == 10 + (20 + 5)
    assert work.n_sampled == 3
    assert (batch.swap_in_bytes, batch.swap_out_bytes) == (200, 300)


def report(ends_ns: list[int], stall_ns: list[int] | None = None) -> StepReport:
    zeros = [0] * len(ends_ns)
    return StepReport(lane=0, start_ns=0, ends_ns=ends_ns, compute_ns=zeros, stall_ns=stall_ns or zeros, rest_ns=zeros)


def spoken(clock: TokenClock, at_ns: int) -> Sequence:
    """A sequence that has had its first token."""
    seq = Sequence(arrival(0).request)
    clock.sampled([seq], report([at_ns]))
    return seq


def test_a_gap_has_the_first_cause_that_applies() -> None:
    def told(
        *, preempted: bool = False, switched: bool = False, prefilled: bool = False, stall_ns: int = 0
    ) -> GapCause:
        recorder = Recorder()
        clock = TokenClock(0, recorder)
        seq = spoken(clock, 10)
        seq.was_preempted = preempted
        if switched:
            clock.resumed(15)
        if prefilled:
            clock.prefilled(17)
        clock.sampled([seq], report([30], [stall_ns]))
        ((_, cause, gap_ns),) = recorder.gap_counts
        assert gap_ns == 20
        return cause

    assert told() is GapCause.DECODE
    assert told(stall_ns=1) is GapCause.FETCH
    assert told(stall_ns=1, prefilled=True) is GapCause.PREFILL
    assert told(stall_ns=1, prefilled=True, switched=True) is GapCause.SWITCH
    assert told(stall_ns=1, prefilled=True, switched=True, preempted=True) is GapCause.PREEMPTION


def test_a_cause_counts_for_one_gap_only() -> None:
    recorder = Recorder()
    clock = TokenClock(0, recorder)
    seq = spoken(clock, 10)
    seq.was_preempted = True
    clock.resumed(12)
    clock.prefilled(14)
    clock.sampled([seq], report([20, 30], [0, 4]))
    clock.sampled([seq], report([41]))
    causes = [(cause, gap_ns) for _, cause, gap_ns in recorder.gap_counts]
    assert causes == [(GapCause.PREEMPTION, 10), (GapCause.FETCH, 10), (GapCause.DECODE, 11)]


def test_a_first_token_makes_no_gap() -> None:
    recorder = Recorder()
    seq = spoken(TokenClock(0, recorder), 10)
    assert (seq.first_token_ns, seq.last_token_ns, seq.max_gap_ns) == (10, 10, 0)
    assert not recorder.gap_counts


def test_a_model_that_has_lent_all_homes_but_its_slot_goes_on_with_that_slot() -> None:
    policy = Mirage(max_remapped_fraction=1, active_bound="cap", placement="even")
    script = Script(policy, n_layers=[4], priorities=[None], layer_ns=100_000)
    for _ in range(3):
        script.ask(Ask.RUNNING_SHORT)
        script.step += 1
    assert script.lent() == [3]
    script.referenced = {(0, loan.home) for loan in script.ledger.residencies[0].loans}
    assert script.ask(Ask.EASE).reason is Reason.IN_USE

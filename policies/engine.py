"""The loop: arrivals in, steps composed, run and accounted, in either world.

One iteration is: take what has arrived; let each lane that may run compose a step;
submit it; go on to the next finish or arrival; account what has finished. A scheduler that
composes ahead (vLLM V1's async scheduling) is asked for the next step before the one under way
is waited for. Under temporal sharing the lane that runs is waited for; under spatial sharing an
arrival is taken while others run. Everything that decides is asked here and nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from enum import Enum
from functools import partial
from typing import Final

from policies.backend import Backend, Batch, StepReport
from policies.incoming import NEVER, Follow, Incoming
from policies.journal import Journal
from policies.lane import Lane, TrueLengths, batch_of
from policies.memory.ledger import Ledger
from policies.policy import Policy
from policies.progress import Progress
from policies.relief import Relief
from policies.serving.scheduler import Step
from policies.serving.sequence import Sequence, State
from policies.serving.tenancy import Sharing, TemporalSharing
from policies.serving.turns import choose
from policies.side_by_side import SideBySide
from policies.types import Arrival, HardwareProfile
from policies.view import Ask

DROPPED: Final = State.DROPPED  # looked up once: an enum's attributes are slow

MANY_STEPS: Final = 1000
"""Steps without a token after which the loop begins to ask whether one will ever come."""


class Outcome(Enum):
    """How a run ended."""

    DONE = "every request finished or was dropped"
    STUCK = "requests are left that can never run"
    STOPPED = "the limit of steps was reached"


class Engine:
    """Serves arrivals on a backend.

    Args:
        lanes: the models, ``lanes[i].index == i``.
        truth: the true output lengths, whose ``stopped`` the lanes' schedulers were given.
        policy: who may hold which memory.
        tenancy: who runs when.
        ledger: the books of HBM, everything at home.
        backend: the world.
        journal: is told what happens.
        leaps: submit identical decode steps together; results do not depend on it.
        max_steps: stop after so many steps (``None``: never).
        gives_up: end when steps go by without a token, as they might for ever.
        use_every_ns: how often the use of HBM is told to the journal, besides every change; ``None``: not.
        follow: what a request that has finished brings about (the next turn of a session); ``None``: nothing.
    """

    def __init__(
        self,
        *,
        lanes: Seq[Lane],
        truth: TrueLengths,
        policy: Policy,
        tenancy: Sharing,
        ledger: Ledger,
        backend: Backend,
        hardware: HardwareProfile,
        journal: Journal,
        leaps: bool = True,
        max_steps: int | None = None,
        gives_up: bool = True,
        use_every_ns: int | None = 100_000_000,
        follow: Follow | None = None,
    ) -> None:
        self.n_steps = 0
        self.active: frozenset[int] = frozenset()
        self._lanes = lanes
        self._truth = truth
        self._policy = policy
        self._turns = tenancy if isinstance(tenancy, TemporalSharing) else None
        self._quantum_ns = NEVER if self._turns is None else self._turns.quantum_ns
        self._beside = SideBySide(lanes) if self._turns is None else None
        self._backend = backend
        self._journal = journal
        self._leaps = leaps
        self._max_steps = NEVER if max_steps is None else max_steps
        self._gives_up = gives_up
        self._use_every_ns = use_every_ns
        self._next_use_ns = 0 if use_every_ns else NEVER
        self._current: int | None = None
        self._turn_began_ns = 0
        self._last_progress_step = 0
        self._incoming = Incoming(follow)
        self._busy: Lane | None = None  # has steps under way behind which it composes
        self._ledger = ledger
        self._progress = [Progress(lane, truth, journal) for lane in lanes]
        self._relief = Relief(
            lanes=lanes,
            policy=policy,
            ledger=ledger,
            backend=backend,
            hardware=hardware,
            journal=journal,
            clock=self,
            sharing=tenancy,
        )
        self._grants = [partial(self._relief.grant, lane) for lane in lanes]

    def run(self, arrivals: Iterator[Arrival]) -> Outcome:
        """Serve every arrival (nondecreasing ``arrival_ns``) to its end.

        At one instant a finish is accounted before an arrival is taken, and an arrival
        is taken before a step is composed.

        Raises:
            ValueError: arrivals go back in time.
        """
        backend, incoming, beside = self._backend, self._incoming, self._beside
        for asker in self._lanes[:1] if beside is None else self._lanes:
            self._relief.consult(asker, Ask.START)
        incoming.open(arrivals)
        lane: Lane | None = None
        while True:
            if incoming.next_ns <= backend.now_ns:
                self._take()
            if self.n_steps >= self._max_steps:
                return Outcome.STOPPED
            if incoming.next_ns == NEVER and self._gives_up and self._spins():
                return Outcome.STUCK
            if beside is None:
                lane = self._start() if self._busy is None else self._busy
            elif self._serve(beside):
                continue
            if lane is not None:
                if lane.scheduler.n_steps_ahead:
                    self._compose_behind(lane)
                if lane.in_flight is not None:
                    report = backend.advance(None)
                    assert report is not None, "a submission is in flight"
                    self._finish(lane, report)
            elif incoming.next_ns != NEVER:
                self._rest()
                backend.advance(incoming.next_ns)
                self._relief.publish_landed()
            else:
                return Outcome.STUCK if any(lane.scheduler.has_work() for lane in self._lanes) else Outcome.DONE

    def _serve(self, beside: SideBySide) -> bool:
        """Let a lane compose beside those that run, or go on to the next finish or arrival; whether any runs or can."""
        if self._policy.lends:
            self.active = beside.active()
        lane = beside.next_to_compose()
        if lane is not None:
            if self._ledger.anything_lent:
                self._relief.consult(lane, Ask.EASE)
            if not self._compose(lane):
                lane.blocked = True
            return True
        next_ns = self._incoming.next_ns
        if self._ledger.anything_lent and next_ns != NEVER:
            for lane in beside.idle():
                while self._relief.consult(lane, Ask.IDLE):
                    pass
        if not beside.anything_runs():
            return False
        report = self._backend.advance(None if next_ns == NEVER else next_ns)
        while report is not None:  # all that finish at one instant, before anything is composed
            self._finish(self._lanes[report.lane], report)
            report = self._backend.advance(self._backend.now_ns)
        return True

    def _take(self) -> None:
        now_ns, incoming = self._backend.now_ns, self._incoming
        while incoming.next_ns <= now_ns:
            arrival = incoming.pop()
            self._truth.learn(arrival)
            lane = self._lanes[arrival.request.model]
            lane.scheduler.add(Sequence(arrival.request))
            lane.blocked = False
            self._last_progress_step = self.n_steps

    def _spins(self) -> bool:
        """Whether more steps have gone by without a token than it takes to compute every prompt.

        vLLM's chunked prefill can preempt its only sequence before every chunk, for ever.
        """
        n_steps = self.n_steps - self._last_progress_step
        if n_steps < MANY_STEPS:
            return False
        return n_steps > sum(seq.n_tokens for lane in self._lanes for seq in lane.scheduler.live())

    def _start(self) -> Lane | None:
        """Let the lane whose turn it is compose and submit a step, or the others if it cannot; the one that did."""
        while (lane := self._choose()) is not None:
            if self._ledger.anything_lent:
                self._relief.consult(lane, Ask.EASE)
            if self._compose(lane):
                return lane
            lane.blocked = True
        return None

    def _compose_behind(self, lane: Lane) -> None:
        """Compose and submit a step behind the one that runs, if there may be another and the lane's turn goes on."""
        if not 0 < lane.n_under_way <= lane.scheduler.n_steps_ahead or not lane.scheduler.has_work():
            return
        if len(self._lanes) > 1 and self._is_contested() and not self._keeps_turn(lane):
            return
        if self._ledger.anything_lent:
            self._relief.consult(lane, Ask.EASE)
        self._compose(lane)

    def _keeps_turn(self, lane: Lane) -> bool:
        """Whether it would be the lane's turn if its step under way were done now."""
        assert self._turns is not None
        turn_ns = self._backend.now_ns - self._turn_began_ns
        return choose(self._turns, lane.index, turn_ns, [each.is_ready() for each in self._lanes]) == lane.index

    def _choose(self) -> Lane | None:
        lanes = self._lanes
        if len(lanes) == 1 and self._current == 0:  # there is nobody to take turns with
            return lanes[0] if lanes[0].is_ready() else None
        assert self._turns is not None
        now_ns = self._backend.now_ns
        chosen = choose(self._turns, self._current, now_ns - self._turn_began_ns, [lane.is_ready() for lane in lanes])
        if chosen is None:
            return None
        lane = self._lanes[chosen]
        if chosen != self._current:
            self._switch_to(lane)
        elif self._is_contested() and now_ns - self._turn_began_ns >= self._quantum_ns:
            self._turn_began_ns = now_ns  # it comes before the others again (by priority): its next turn begins
        return lane

    def _switch_to(self, lane: Lane) -> None:
        """Give the turn to a lane. The one that leaves has its pending stop checks run first."""
        now_ns = self._backend.now_ns
        if self._current is not None:
            self._retire(self._lanes[self._current])
            self._progress[lane.index].clock.resumed(now_ns)
        self._current = lane.index
        self._turn_began_ns = now_ns
        self.active = frozenset({lane.index})
        if self._ledger.anything_lent:
            self._relief.consult(lane, Ask.ACTIVATE)

    def _compose(self, lane: Lane) -> bool:
        """Compose a step of the lane and submit it; whether anything happened, be it only that room was made."""
        scheduler, now_ns = lane.scheduler, self._backend.now_ns
        if lane.asked:
            lane.asked.clear()
        step = scheduler.compose(now_ns, self._grants[lane.index])
        self._journal.composed(lane.index, now_ns, step, scheduler)
        lane.n_swapped_out += step.n_swapped_out
        if step.decodes or step.prefills:
            if scheduler.is_async:
                self._retire(lane)
            self._submit(lane, step)
            return True
        retired = self._retire(lane)
        self.n_steps += step.acted
        lane.n_steps += step.acted
        self._drain(lane)
        return retired or step.acted

    def _submit(self, lane: Lane, step: Step) -> None:
        if step.joined:
            self._progress[lane.index].joined(step)
        batch = batch_of(step, lane.n_swapped_out, lane.block_bytes)
        lane.n_swapped_out = 0
        next_ns = self._incoming.next_ns
        stop_ns = next_ns if next_ns < self._next_use_ns else self._next_use_ns
        if self._beside is None and len(self._lanes) > 1 and self._is_contested():
            stop_ns = min(stop_ns, self._turn_began_ns + self._quantum_ns)
        if lane.scheduler.n_steps_ahead:
            self._submit_ahead(lane, step, batch, stop_ns)
            return
        leaps = self._leaps and not step.prefills and (self._beside is None or self._beside.is_alone(lane))
        n_steps = self._n_repeats(lane, step) if leaps else 1
        lane.in_flight = step, batch
        self._backend.submit(lane.index, batch, n_steps, stop_ns)

    def _submit_ahead(self, lane: Lane, step: Step, batch: Batch, stop_ns: int) -> None:
        """Submit a step of a scheduler that composes ahead: the first, or one behind it, which may repeat."""
        n_ahead, n_steps = lane.scheduler.n_steps_ahead, 1
        if self._leaps and not step.prefills and lane.n_under_way == n_ahead:
            n_steps = self._n_repeats(lane, step)
        if lane.in_flight is None:
            lane.in_flight, self._busy = (step, batch), lane
        else:
            assert lane.behind is None, "there are no more than two steps under way"
            lane.behind = step, batch
        lane.n_under_way += 1
        self._backend.submit(lane.index, batch, n_steps, stop_ns, n_ahead)

    def _n_repeats(self, lane: Lane, step: Step) -> int:
        """Steps for which nothing can change: no finish, no block missing, no question due.

        Asynchronously the step behind a finish is still the same: it was composed before the stop check.
        """
        n_steps = self._progress[lane.index].n_to_next_end(step) - lane.n_under_way  # whose tokens are to come
        if step.pace is not None and lane.scheduler.is_async:
            n_steps += 1
        if lane.asked or self._ledger.anything_lent:
            n_steps = min(n_steps, self._n_quiet(lane))
        if n_steps > self._max_steps - self.n_steps:
            n_steps = self._max_steps - self.n_steps
        return 1 if n_steps <= 1 else lane.scheduler.n_repeats(step, n_steps)

    def _n_quiet(self, lane: Lane) -> int:
        """Steps before the policy is asked again what it has been asked for the present one."""
        asks = {*lane.asked, Ask.EASE} if self._ledger.anything_lent else lane.asked
        return min(lane.quiet_until.get(ask, 0) for ask in asks) - self._relief.steps_of(lane)

    def _is_contested(self) -> bool:
        """Whether another model than the one whose turn it is could run."""
        lanes = self._lanes
        return any(lane.index != self._current and lane.is_ready() for lane in lanes)

    def _finish(self, lane: Lane, report: StepReport) -> None:
        """Account a finished submission: tokens, measurements, ends, landed loads."""
        assert lane.in_flight is not None
        step, batch = lane.in_flight
        goes_on = lane.scheduler.n_steps_ahead and self._goes_on_behind(lane, report)
        if not goes_on:
            lane.in_flight, lane.behind = lane.behind, None
        self._journal.ran(lane.index, batch, report)
        self._account(lane, step, report)
        if not lane.scheduler.is_async:
            self._retire(lane)
        if goes_on:
            lane.scheduler.compose_again(step)
        self._drain(lane)
        if self._policy.lends:
            _measure(lane, step, report)
            self._relief.publish_landed()
        end_ns = report.ends_ns[-1]
        if self._use_every_ns and end_ns >= self._next_use_ns:
            self._next_use_ns = end_ns + self._use_every_ns
            self._relief.publish_use()

    def _goes_on_behind(self, lane: Lane, report: StepReport) -> bool:
        """Note what is under way behind a report; whether that is the last repetition of the same submission."""
        lane.n_under_way = report.n_under_way
        if not lane.n_under_way:
            self._busy = None
        return lane.n_under_way > 0 and lane.behind is None

    def _account(self, lane: Lane, step: Step, report: StepReport) -> None:
        """Give sequences their tokens; the last step may be the one behind a finish (see ``_n_repeats``)."""
        progress, n_steps = self._progress[lane.index], len(report.ends_ns)
        n_to_end = n_steps
        if n_steps > 1 and step.pace is not None:
            n_to_end = min(n_steps, progress.n_to_next_end(step))
        self.n_steps += n_to_end
        lane.n_steps += n_to_end
        if progress.enter(step, report, n_to_end):
            self._last_progress_step = self.n_steps
        if n_to_end < n_steps:
            lane.scheduler.compose_again(step)
            self._retire(lane, report.ends_ns[-2])
            self.n_steps += 1
            lane.n_steps += 1
            if progress.enter_behind(step, report):
                self._last_progress_step = self.n_steps
        lane.last_active_step = self.n_steps

    def _retire(self, lane: Lane, at_ns: int | None = None) -> bool:
        """Run the stop checks that are due, now or (looking back) then; whether any request finished or was dropped."""
        gone = lane.scheduler.retire()
        if gone:
            self._gone(lane, gone, self._backend.now_ns if at_ns is None else at_ns)
        return bool(gone)

    def _drain(self, lane: Lane) -> None:
        """Hear of the last requests: nothing will be composed after which their checks would come."""
        if not lane.scheduler.has_work():
            self._retire(lane)

    def _gone(self, lane: Lane, seqs: Seq[Sequence], at_ns: int) -> None:
        for seq in seqs:
            seq.finish_ns = at_ns if seq.state is DROPPED else seq.last_token_ns
            self._truth.forget(seq)
            if self._incoming.follow is not None and seq.state is not DROPPED:
                assert seq.finish_ns is not None
                self._incoming.finished(seq.request, seq.finish_ns)
        self._journal.retired(lane.index, at_ns, seqs, lane.scheduler)
        self._relief.blocks_became_free(lane)

    def _rest(self) -> None:
        """No model has work: let the policy put things back while the link is free."""
        while self._current is not None and self._ledger.anything_lent:
            if not self._relief.consult(self._lanes[self._current], Ask.IDLE):
                return


def _measure(lane: Lane, step: Step, report: StepReport) -> None:
    if step.prefills:
        lane.estimates.saw_prefill([prefill.n_tokens for prefill in step.prefills], report.compute_ns[-1])
    else:
        lane.estimates.saw_decodes(len(step.decodes), report.compute_ns, report.rest_ns)

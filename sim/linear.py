"""A machine that is nothing but a step-time formula, and the loop over one scheduler on it.

For holding a scheduler against vLLM's own: memory, links and models play no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from policies.backend import Batch, Change, StepReport
from policies.engine import Engine, Outcome
from policies.journal import Journal
from policies.lane import Lane, TrueLengths
from policies.memory.layout import KvLayout
from policies.memory.ledger import Ledger, Partition
from policies.recompute import Recompute
from policies.serving.scheduler import Scheduler
from policies.serving.tenancy import TemporalSharing
from policies.types import Arrival, HardwareProfile, LinkProfile, ModelShape
from sim.under_way import UnderWay

NEVER_NS = 2**62


class StepTime(Protocol):
    """How long steps take on a machine."""

    def of_step(self, batch: Batch, /) -> Callable[[int], int]:
        """Nanoseconds of a step by the number of its repetition, 0 the first time."""
        ...


@dataclass(frozen=True, slots=True)
class LinearTime:
    """Duration of a step: a constant, and so much for each computed token and each request in it."""

    step_ns: int
    token_ns: int
    request_ns: int

    def __post_init__(self) -> None:
        if min(self.step_ns, self.token_ns, self.request_ns) < 0:
            raise ValueError(f"step time {self.step_ns}, {self.token_ns}, {self.request_ns} ns must not be negative")

    def of(self, n_tokens: int, n_requests: int) -> int:
        """Nanoseconds of one step; a step without tokens takes no time."""
        if not n_tokens:
            return 0
        return self.step_ns + self.token_ns * n_tokens + self.request_ns * n_requests

    def of_step(self, batch: Batch) -> Callable[[int], int]:
        """See ``StepTime``: a repetition takes no longer."""
        duration_ns = self.of(batch.work.n_tokens, len(batch.rows))
        return lambda _nth: duration_ns


class TimedBackend:
    """Carries out steps as time. Swapped blocks cost nothing, and there is no memory to move."""

    def __init__(self, time: StepTime) -> None:
        self._time = time
        self._now_ns = 0
        self._under_way = UnderWay()

    @property
    def now_ns(self) -> int:
        """The present."""
        return self._now_ns

    def apply(self, change: Change) -> None:
        """Refuse: no policy that lends runs here.

        Raises:
            ValueError: there is something to do.
        """
        if change.ops:
            raise ValueError(f"{len(change.ops)} ops, but this machine has no memory to move")

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Run the steps at once; ``advance`` reports them.

        Raises:
            ValueError: the lane is busy, or a batch with prefill tokens would repeat.
        """
        start_ns = self._under_way.begin(lane, batch, n_steps, n_ahead, self._now_ns)
        nth_ns = self._time.of_step(batch)
        durations_ns = [nth_ns(0)]
        ends_ns = [start_ns + durations_ns[0]]
        while len(ends_ns) < n_steps and self._under_way.goes_on(start_ns, ends_ns, stop_ns):
            durations_ns.append(nth_ns(len(ends_ns)))
            ends_ns.append(ends_ns[-1] + durations_ns[-1])
        nothing = [0] * len(ends_ns)
        self._under_way.put(StepReport(lane, start_ns, ends_ns, durations_ns, nothing, nothing))

    def advance(self, until_ns: int | None) -> StepReport | None:
        """Go on to the end of what was submitted, else to ``until_ns``.

        Raises:
            ValueError: nothing is in flight and no time is given.
        """
        report = self._under_way.take(until_ns)
        self._now_ns = report.ends_ns[-1] if report is not None else max(self._now_ns, until_ns or 0)
        return report

    def landed(self) -> tuple[tuple[int, int], ...]:
        """Nothing is ever loaded."""
        return ()


def serve_alone(
    scheduler: Scheduler,
    arrivals: Iterator[Arrival],
    *,
    truth: TrueLengths,
    time: StepTime,
    journal: Journal,
    max_steps: int | None = None,
    leaps: bool = False,
    gives_up: bool = False,
) -> tuple[Outcome, int]:
    """Run the project's loop over one scheduler.

    Args:
        arrivals: nondecreasing in ``arrival_ns``.
        truth: what the scheduler's ``stopped`` asks.
        max_steps, leaps, gives_up: see ``Engine``; vLLM itself never gives up.

    Returns:
        How it ended, and when (ns).
    """
    backend = TimedBackend(time)
    part = Partition(name=_MODEL.name, n_layers=1, home_pages=1, other_pages=0, activation_pages=0, kv_pages=1)
    engine = Engine(
        lanes=[Lane(index=0, shape=_MODEL, scheduler=scheduler, layout=_no_homes(scheduler), block_bytes=1)],
        truth=truth,
        policy=Recompute(),
        tenancy=TemporalSharing(quantum_s=1.0),
        ledger=Ledger(part.n_pages, [part]),
        backend=backend,
        hardware=_MACHINE,
        journal=journal,
        leaps=leaps,
        max_steps=max_steps,
        gives_up=gives_up,
        use_every_ns=NEVER_NS,
    )
    return engine.run(arrivals), backend.now_ns


def _no_homes(scheduler: Scheduler) -> KvLayout:
    n_blocks = scheduler.pool.n_base
    return KvLayout(
        n_base_blocks=n_blocks,
        first_blocks=(n_blocks,),
        strides=(1,),
        blocks_per_home=(0,),
        first_host_block=n_blocks + 1,
    )


# The loop wants a model and a machine. Nothing here reads their numbers.
_MODEL = ModelShape(
    name="none",
    n_layers=1,
    hidden=1,
    n_heads=1,
    n_kv_heads=1,
    head_dim=1,
    ffn=1,
    vocab=1,
    gated_mlp=False,
    layer_bytes=1,
    total_bytes=1,
    max_context_tokens=1,
)
_MACHINE = HardwareProfile(
    name="none",
    hbm_bytes=2,
    hbm_bytes_per_s=1,
    page_bytes=1,
    link=LinkProfile(h2d_bytes_per_s=1, d2h_bytes_per_s=1, joint_bytes_per_s=1),
)

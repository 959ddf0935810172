"""Engines that share their experts: data parallelism of a model with a mixture of experts.

Every layer exchanges tokens between all engines, so they go from step to step together: what each of them composes
runs as one step, and one without requests takes part for nothing. To the loop they are one scheduler.

Source: vLLM 0.19, v1/engine/core.py (DPEngineCoreProc) and v1/engine/core_client.py (DPLBAsyncMPClient).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import chain

from policies.serving.scheduler import Relieve, Step
from policies.serving.sequence import Sequence
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.serving.vllm_v1.scheduler import VllmV1

WAITING_WEIGHT = 4
"""A request goes where 4 x waiting + running is least."""


class Peers:
    """Schedulers that step together, a ``policies.serving.scheduler.Scheduler``.

    Steps are never repeated. Nothing is ever lent here, so that there are no ranges to vacate.

    Args:
        engines: at least one, with the same settings.
    """

    is_async = False

    def __init__(self, engines: Seq[VllmV1]) -> None:
        self.engines = engines
        self.n_steps_ahead = engines[0].n_steps_ahead
        self._engine_of: dict[int, int] = {}
        self._under_way: deque[tuple[Step, list[Step]]] = deque()

    @property
    def pool(self) -> FreeQueuePool:
        """The blocks of the first one; all have as many."""
        return self.engines[0].pool

    def has_work(self) -> bool:
        """See ``Scheduler``."""
        return any(engine.has_work() for engine in self.engines)

    @property
    def n_live(self) -> int:
        """See ``Scheduler``."""
        return sum(engine.n_live for engine in self.engines)

    @property
    def n_waiting(self) -> int:
        """See ``Scheduler``."""
        return sum(engine.n_waiting for engine in self.engines)

    @property
    def n_running(self) -> int:
        """See ``Scheduler``."""
        return sum(engine.n_running for engine in self.engines)

    @property
    def n_swapped(self) -> int:
        """None: V1 does not swap."""
        return 0

    def engine_of(self, seq: Sequence) -> int:
        """The engine that has a request."""
        return self._engine_of[seq.request.request_id]

    def add(self, seq: Sequence) -> None:
        """Give a request to the engine with the least to do, the first of those."""
        loads = [WAITING_WEIGHT * engine.n_waiting + engine.n_running for engine in self.engines]
        index = loads.index(min(loads))
        self._engine_of[seq.request.request_id] = index
        self.engines[index].add(seq)

    def compose(self, now_ns: int, relieve: Relieve) -> Step:
        """Let every engine compose what it runs; the step has all of it, engine by engine."""
        parts = [engine.compose(now_ns, relieve) for engine in self.engines]
        step = Step(
            prefills=[prefill for part in parts for prefill in part.prefills],
            decodes=[seq for part in parts for seq in part.decodes],
        )
        step.n_context_tokens = sum(part.n_context_tokens or 0 for part in parts)
        step.preempted = [victim for part in parts for victim in part.preempted]
        if step.runs:
            self._under_way.append((step, parts))
        return step

    def n_repeats(self, step: Step, at_most: int) -> int:
        """Once."""
        del step, at_most
        return 1

    def compose_again(self, step: Step) -> None:
        """Refuse: no step is repeated."""
        raise ValueError(f"a step of {len(step.rows)} sequences of several engines is not repeated")

    def ran(self, step: Step, n_steps: int, last_composed_ns: int, stopped: Seq[Sequence]) -> None:
        """Tell every engine that its part ran."""
        composed, parts = self._under_way.popleft()
        assert composed is step, "steps end in the order in which they were composed"
        for index, (engine, part) in enumerate(zip(self.engines, parts, strict=True)):
            if part.runs:
                its = [seq for seq in stopped if self.engine_of(seq) == index]
                engine.ran(part, n_steps, last_composed_ns, its)

    def retire(self) -> list[Sequence]:
        """See ``Scheduler``."""
        return [seq for engine in self.engines for seq in engine.retire()]

    def preempt(self, request_ids: Iterable[int]) -> list[Sequence]:
        """See ``Scheduler``."""
        wanted = list(request_ids)
        return [seq for engine in self.engines for seq in engine.preempt(wanted)]

    def vacate(self, range_id: tuple[int, int]) -> list[tuple[int, int]]:
        """See ``Scheduler``."""
        return [move for engine in self.engines for move in engine.vacate(range_id)]

    def live(self) -> Iterator[Sequence]:
        """See ``Scheduler``."""
        return chain.from_iterable(engine.live() for engine in self.engines)

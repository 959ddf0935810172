"""Figures of a run whose steps take other times: the same tokens in the same steps, on another clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from policies.types import NS_PER_S
from sim.validation.same_decisions import Retold
from traces.results.metrics import Figures, Spread, spread

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

Ends = Callable[[Retold], int]
"""When a step ends, in one of the clocks."""


@dataclass(slots=True)
class _Tokens:
    """When a request got its tokens."""

    at_ns: list[int] = field(default_factory=list[int])


def retimed(figures: Figures, retold: Sequence[Retold], arrivals: Mapping[int, tuple[int, int]]) -> Figures:
    """Put a run's figures on the clock of its simulated steps; what no clock changes stays.

    A request arrives in the step in which it arrived, as far into it.

    Args:
        figures: of the real run.
        arrivals: by request: when it arrived, and how many tokens it got.
    """
    wanted = {request_id: n_tokens for request_id, (_, n_tokens) in arrivals.items()}
    tokens = token_times(retold, wanted, lambda step: step.end_ns)
    clock = _Clock(retold)
    came = {request_id: clock(at_ns) for request_id, (at_ns, _) in arrivals.items()}
    done = {request_id: at_ns for request_id, at_ns in tokens.items() if len(at_ns) == wanted[request_id]}
    n_output = sum(len(at_ns) for at_ns in done.values())
    makespan_ns = max((at_ns[-1] for at_ns in done.values()), default=0) - min(came.values(), default=0)
    return replace(
        figures,
        ttft=spread(_array([at_ns[0] - came[request_id] for request_id, at_ns in done.items()])),
        gap=gaps(tokens),
        mean_gap=spread(_array([(at[-1] - at[0]) // (len(at) - 1) for at in done.values() if len(at) > 1])),
        output_tokens_per_s=n_output * NS_PER_S / makespan_ns if makespan_ns > 0 else None,
        busy_ns=sum(step.lasted_ns for step in retold),
        stall_ns=sum(step.stall_ns for step in retold),
    )


def token_times(retold: Sequence[Retold], wanted: Mapping[int, int], end_ns: Ends) -> dict[int, list[int]]:
    """When each request got each of the tokens that it wanted.

    Asynchronously a step may run for a sequence that has ended; what it samples is nobody's.
    """
    tokens: dict[int, list[int]] = {}
    for step in retold:
        sampled = [prefill.seq for prefill in step.batch.prefills if prefill.samples]
        for seq in (*sampled, *step.batch.decodes):
            request_id = seq.request.request_id
            own = tokens.setdefault(request_id, [])
            if len(own) < wanted[request_id]:
                own.append(end_ns(step))
    return tokens


def gaps(tokens: Mapping[int, Sequence[int]]) -> Spread:
    """Every gap between two tokens of a request."""
    return spread(np.concatenate([np.diff(_array(at_ns)) for at_ns in tokens.values()] or [_array([])]))


class _Clock:
    """From the run's time to that of its simulation: within a step in proportion, between steps alike."""

    def __init__(self, retold: Sequence[Retold]) -> None:
        self._retold = retold
        self._starts_ns = [step.real.start_ns for step in retold]

    def __call__(self, at_ns: int) -> int:
        at = bisect_right(self._starts_ns, at_ns) - 1
        if at < 0:
            return at_ns
        step = self._retold[at]
        passed_ns, lasted_ns = at_ns - step.real.start_ns, step.real.lasted_ns
        if passed_ns < lasted_ns:
            return step.start_ns + passed_ns * step.lasted_ns // lasted_ns
        return step.end_ns + passed_ns - lasted_ns


def _array(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)

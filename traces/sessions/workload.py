"""Sessions in a closed loop as the workload of a run: what arrives, and what follows a finish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from policies.types import Arrival, Request
from traces.sessions.closed_loop import ClosedLoop
from traces.sessions.settings import SessionSettings


@dataclass(slots=True, kw_only=True)
class SessionWorkload:
    """Turns of sessions, the same for each start as far as the server is the same.

    Attributes:
        max_context_tokens: prompt and answer of one turn together.
        loop: that was started last.
    """

    settings: SessionSettings
    seed: int
    max_context_tokens: int
    loop: ClosedLoop = field(init=False)

    def __post_init__(self) -> None:
        self.loop = self.settings.play(self.seed, self.max_context_tokens)

    def __reduce__(self) -> tuple[partial[SessionWorkload], tuple[()]]:
        """Travel to another process without the loop, whose sessions are still being made; it begins anew there."""
        made = partial(
            SessionWorkload, settings=self.settings, seed=self.seed, max_context_tokens=self.max_context_tokens
        )
        return made, ()

    @property
    def description(self) -> str:
        """What they are, for a person."""
        settings = self.settings
        what = settings.fit or settings.path or f"{settings.n_turns} turns each"
        n = "sessions without end" if settings.n_sessions is None else f"{settings.n_sessions} sessions"
        at_once = "" if settings.n_at_once is None else f", {settings.n_at_once} at once"
        window = "" if settings.window_s is None else f", for {settings.window_s:g} s"
        return f"{n} of {what}{at_once}{window}"

    def arrivals(self) -> Iterator[Arrival]:
        """Start over: the first turns."""
        self.loop = self.settings.play(self.seed, self.max_context_tokens)
        return self.loop.first_turns()

    def follow(self, request: Request, finish_ns: int) -> Iterable[Arrival]:
        """What the finish of a turn brings about."""
        return self.loop.follow(request, finish_ns)

"""Which sessions are served in a closed loop, by settings: all alike, drawn from a fit, or those of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice, repeat
from math import log
from pathlib import Path

import numpy as np

from policies.types import NS_PER_S
from traces.sessions.closed_loop import ClosedLoop, equal_sessions
from traces.sessions.made import LognormalMixture, load_session_fit
from traces.sessions.sessions import Session, read_sessions
from traces.workload.settings import refuse_unused, require_choice, require_positive
from traces.workload.streams import random_stream

SIZES = ("n_turns", "first_tokens", "added_tokens", "output_tokens", "think_s")
SCALES = ("first_scale", "added_scale", "output_scale", "think_scale")

USES = {
    "equal": (*SIZES, "added_spread", "output_spread", "drawn_by", "start_within_s"),
    "fit": ("start_within_s", "fit", "drawn_by", "least_turns", "most_turns", "total_turns", *SCALES),
    "file": ("path",),
}
"""Settings that each kind reads, besides those of all."""

OF_ALL = ("n_sessions", "n_at_once", "window_s", "declared_tokens", "measured", "warm_up_turns")

MEASURED = ("all", "without_first_turn", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Sessions of one model, and how they are played.

    Attributes:
        kind: ``equal``, ``fit`` or ``file``.
        n_sessions: how many; ``None``: of a file all, otherwise without end.
        n_at_once: sessions side by side, the next begins when one ends; ``None``: each begins by itself.
        start_within_s: of ``equal`` and ``fit``: the sessions begin one after the other, evenly over so long; ``None``:
            all at once.
        window_s: no turn arrives then or later; ``None``: the sessions are played to their ends.
        declared_tokens: see ``ClosedLoop``.
        measured: which turns figures are of: ``all``; ``without_first_turn``; ``replay``: those with a first token
            from the ``warm_up_turns``-th finish to the first end of a session after all have been started (VAMP VI-A).
        n_turns, first_tokens, added_tokens, output_tokens, think_s, added_spread, output_spread: of ``equal``: see
            ``equal_sessions``.
        fit: of ``fit``: a name in ``traces/fits/sessions.json``.
        drawn_by: of ``equal`` and ``fit``: the seed of the sessions whatever the run's own is, as if they were one
            recorded trace; ``None``: the run's.
        least_turns, most_turns: of ``fit``: turns are as likely to be any number in between, instead of the fit's own.
        total_turns: these are moved by one here and there until they sum to this.
        first_scale, added_scale, output_scale, think_scale: of ``fit``: so many times the tokens of the first prompt,
            those that a turn adds and those of its answer, and so many times the thinking.
        path: of ``file``: a trace with sessions.

    Raises:
        ValueError: a choice is unknown, a number out of range, a setting without effect or missing.
    """

    kind: str
    n_sessions: int | None = None
    n_at_once: int | None = None
    start_within_s: float | None = None
    window_s: float | None = None
    declared_tokens: int | None = None
    measured: str = "all"
    warm_up_turns: int = 128
    n_turns: int | None = None
    first_tokens: int | None = None
    added_tokens: int | None = None
    output_tokens: int | None = None
    think_s: float | None = None
    added_spread: float = 0.0
    output_spread: float = 0.0
    fit: str | None = None
    drawn_by: int | None = None
    least_turns: int | None = None
    most_turns: int | None = None
    total_turns: int | None = None
    first_scale: float = 1.0
    added_scale: float = 1.0
    output_scale: float = 1.0
    think_scale: float = 1.0
    path: str | None = None

    def __post_init__(self) -> None:
        require_choice("sessions.kind", self.kind, USES)
        require_choice("sessions.measured", self.measured, MEASURED)
        require_positive("sessions.warm_up_turns", self.warm_up_turns, "turns")
        refuse_unused("sessions", self, "kind", (*OF_ALL, *USES[self.kind]))
        for name in ("n_sessions", "n_at_once"):
            require_positive(f"sessions.{name}", getattr(self, name), "sessions")
        for name in ("window_s", "start_within_s"):
            require_positive(f"sessions.{name}", getattr(self, name), "s")
        for name in SCALES:
            require_positive(f"sessions.{name}", getattr(self, name), "times")
        for name in ("added_spread", "output_spread"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"sessions.{name}={getattr(self, name)} is outside [0, 1]")
        needed = {"equal": SIZES, "fit": ("fit",), "file": ("path",)}[self.kind]
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"sessions.kind={self.kind} needs sessions.{name}; set it")
        if self.kind != "file" and self.n_sessions is None and (self.n_at_once is None or self.window_s is None):
            raise ValueError(
                "sessions without end need both sessions.n_at_once and sessions.window_s; or set n_sessions"
            )
        if self.start_within_s is not None and (self.n_sessions is None or self.n_at_once is not None):
            raise ValueError("sessions.start_within_s needs sessions.n_sessions, and no sessions.n_at_once")
        if (self.least_turns is None) != (self.most_turns is None) or (self.least_turns or 1) > (self.most_turns or 1):
            raise ValueError(
                f"sessions: least_turns={self.least_turns}, most_turns={self.most_turns}: give both, in order"
            )
        if self.total_turns is not None:
            self._require_total(self.total_turns)

    def _require_total(self, total: int) -> None:
        n, least, most = self.n_sessions, self.least_turns, self.most_turns
        if n is None or least is None or most is None or not n * least <= total <= n * most:
            raise ValueError(f"sessions.total_turns={total} is not within n_sessions x least_turns..most_turns")

    def sessions(self, seed: int) -> Iterator[Session]:
        """Make the sessions, or read them.

        Raises:
            ValueError: the fit is unknown, or the file is not usable.
        """
        match self.kind:
            case "file":
                assert self.path is not None
                return islice(read_sessions(Path(self.path)), self.n_sessions)
            case "fit":
                return self._starting(islice(self._drawn(self._stream(seed)), self.n_sessions))
            case _:
                return self._starting(self._equal(self._stream(seed)))

    def play(self, seed: int, max_context_tokens: int) -> ClosedLoop:
        """Begin the loop."""
        return ClosedLoop(
            self.sessions(seed),
            max_context_tokens=max_context_tokens,
            n_at_once=self.n_at_once,
            declared_tokens=self.declared_tokens,
            end_ns=None if self.window_s is None else round(self.window_s * NS_PER_S),
        )

    def _starting(self, sessions: Iterator[Session]) -> Iterator[Session]:
        """Give the sessions their starts."""
        if self.start_within_s is None or self.n_sessions is None:
            return sessions
        every_ns = round(self.start_within_s * NS_PER_S) // self.n_sessions
        return (replace(session, start_ns=number * every_ns) for number, session in enumerate(sessions))

    def _stream(self, seed: int) -> np.random.Generator:
        return random_stream(seed if self.drawn_by is None else self.drawn_by, "lengths")

    def _equal(self, rng: np.random.Generator) -> Iterator[Session]:
        sizes = self.n_turns, self.first_tokens, self.added_tokens, self.output_tokens, self.think_s
        n_turns, first, added, output, think_s = (value or 0 for value in sizes)
        return equal_sessions(
            2**62 if self.n_sessions is None else self.n_sessions,
            n_turns=int(n_turns),
            first_tokens=int(first),
            added_tokens=int(added),
            output_tokens=int(output),
            think_ns=round(think_s * NS_PER_S),
            added_spread=self.added_spread,
            output_spread=self.output_spread,
            rng=rng,
        )

    def _drawn(self, rng: np.random.Generator) -> Iterator[Session]:
        assert self.fit is not None
        fit = load_session_fit(self.fit)
        fit = replace(
            fit,
            first_tokens=fit.first_tokens.scaled(self.first_scale),
            added_tokens=fit.added_tokens.scaled(self.added_scale),
            output_tokens=fit.output_tokens.scaled(self.output_scale),
            think_ms=fit.think_ms.scaled(self.think_scale),
        )
        for number, n_turns in zip(count(), self._turns(rng)):
            drawn = fit if n_turns is None else replace(fit, turns=_always(n_turns))
            yield replace(next(drawn.sessions(rng)), name=f"s{number}")

    def _turns(self, rng: np.random.Generator) -> Iterator[int | None]:
        """Turns of each session, ``None``: as the fit has them."""
        least, most = self.least_turns, self.most_turns
        if least is None or most is None:
            return repeat(None)
        if self.n_sessions is None or self.total_turns is None:
            return (int(rng.integers(least, most + 1)) for _ in count())
        turns = [int(n) for n in rng.integers(least, most + 1, self.n_sessions)]
        while (missing := self.total_turns - sum(turns)) != 0:
            at, step = int(rng.integers(len(turns))), 1 if missing > 0 else -1
            if least <= turns[at] + step <= most:
                turns[at] += step
        return iter(turns)


def _always(n: int) -> LognormalMixture:
    return LognormalMixture(weights=(1.0,), mu=(log(n),), sigma=(0.0,), least=n, most=n)

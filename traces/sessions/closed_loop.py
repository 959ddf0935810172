"""Sessions served in a closed loop: a turn arrives when its user has thought, after the one before has been answered.

The first turns are listed; every other one follows a finish, of which the engine tells (``Engine``'s ``follow``)::

    loop = ClosedLoop(sessions, n_at_once=48, max_context_tokens=262_144)
    Engine(..., follow=loop.follow).run(loop.first_turns())
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from policies.types import Arrival, Request
from traces.formats import Pieces
from traces.sessions.sessions import Session, Turn, prompt_of


@dataclass(frozen=True, slots=True)
class _Asked:
    """A turn that has been issued."""

    session: Session
    first_id: int
    number: int
    prompt: Pieces


class ClosedLoop:
    """Issues the turns of sessions to one model.

    The requests of a session have consecutive ids, in the order of the sessions and of their turns, whatever the
    server does. A session ends early at the first turn that does not fit the context.

    Args:
        sessions: in the order in which they begin; taken as they are needed, so that they may be without end.
        max_context_tokens: prompt and answer of one turn together.
        n_at_once: sessions that run side by side: the next begins when one ends, with no pause. ``None``: each
            begins at its own ``start_ns`` (0 where it has none), and nothing follows it.
        declared_tokens: output tokens that every request declares, at least its true number; ``None``: as many.
        end_ns: turns that would arrive then or later are not issued.
        model: which the requests are for.

    Attributes:
        n_issued: turns issued so far.
        n_cut: sessions that ended early.
    """

    def __init__(
        self,
        sessions: Iterable[Session],
        *,
        max_context_tokens: int,
        n_at_once: int | None = None,
        declared_tokens: int | None = None,
        end_ns: int | None = None,
        model: int = 0,
    ) -> None:
        if n_at_once is not None and n_at_once < 1:
            raise ValueError(f"n_at_once={n_at_once} sessions must be at least 1, or null")
        self.n_issued = 0
        self.n_cut = 0
        self._sessions = iter(sessions)
        self._max_context_tokens = max_context_tokens
        self._n_at_once = n_at_once
        self._declared_tokens = declared_tokens
        self._end_ns = end_ns
        self._model = model
        self._asked: dict[int, _Asked] = {}
        self._begun: list[tuple[int, Session]] = []  # (first id, whose)
        self._next_id = 0

    def first_turns(self) -> Iterator[Arrival]:
        """The first turn of each session that begins by itself, in order of time.

        Raises:
            ValueError: sessions begin out of order.
        """
        if self._n_at_once is None:
            last_ns = 0
            for session in self._sessions:
                start_ns = session.start_ns or 0
                if start_ns < last_ns:
                    raise ValueError(
                        f"session {session.name} begins at {start_ns} ns, after one at {last_ns}; sort them"
                    )
                last_ns = start_ns
                yield from self._begin(session, start_ns)
        else:
            for _ in range(self._n_at_once):
                yield from self._begin_next(0)

    def follow(self, request: Request, finish_ns: int) -> Iterator[Arrival]:
        """The turn that follows an answer, or the next session."""
        asked = self._asked.pop(request.request_id)
        number = asked.number + 1
        if number < len(asked.session.turns):
            turn = asked.session.turns[number]
            prompt = prompt_of(
                turn, session=asked.session.name, number=number, before=asked.prompt, before_id=request.request_id
            )
            issued = self._issue(_Asked(asked.session, asked.first_id, number, prompt), turn, finish_ns + turn.think_ns)
            if issued is not None:
                yield issued
                return
        if self._n_at_once is not None:
            yield from self._begin_next(finish_ns)

    def is_continued(self, request_id: int) -> bool:
        """Whether a later turn will begin with this one's prompt, which no server knows: for an oracle."""
        first_id, session = self._begun[bisect_right(self._begun, request_id, key=lambda begun: begun[0]) - 1]
        later = session.turns[request_id - first_id + 1 :]
        return bool(later) and later[0].keeps != "nothing" and self._fits(later[0])

    def _begin_next(self, at_ns: int) -> Iterator[Arrival]:
        """Begin sessions until one has a turn that fits, if there is any."""
        for session in self._sessions:
            first = list(self._begin(session, at_ns))
            if first or self._is_over(at_ns):
                yield from first
                return

    def _begin(self, session: Session, at_ns: int) -> Iterator[Arrival]:
        first_id, self._next_id = self._next_id, self._next_id + len(session.turns)
        self._begun.append((first_id, session))
        for turn in islice(session.turns, 1):
            prompt = prompt_of(turn, session=session.name, number=0, before=(), before_id=None)
            issued = self._issue(_Asked(session, first_id, 0, prompt), turn, at_ns)
            if issued is not None:
                yield issued

    def _issue(self, asked: _Asked, turn: Turn, at_ns: int) -> Arrival | None:
        """Make a request of a turn, unless it is too long or comes too late."""
        if not self._fits(turn):
            self.n_cut += 1
            return None
        if self._is_over(at_ns):
            return None
        request = Request(
            request_id=asked.first_id + asked.number,
            model=self._model,
            arrival_ns=at_ns,
            n_prompt_tokens=turn.n_prompt_tokens,
            max_output_tokens=max(turn.n_output_tokens, self._declared_tokens or 0),
            prompt=asked.prompt,
        )
        self._asked[request.request_id] = asked
        self.n_issued += 1
        return Arrival(request=request, n_output_tokens=turn.n_output_tokens)

    def _fits(self, turn: Turn) -> bool:
        return turn.n_prompt_tokens + turn.n_output_tokens <= self._max_context_tokens

    def _is_over(self, at_ns: int) -> bool:
        return self._end_ns is not None and at_ns >= self._end_ns


def equal_sessions(
    n_sessions: int,
    *,
    n_turns: int,
    first_tokens: int,
    added_tokens: int,
    output_tokens: int,
    think_ns: int = 0,
    added_spread: float = 0.0,
    output_spread: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Iterator[Session]:
    """Make sessions that share nothing and end with equally many tokens: VAMP's in-house load (no sizes published).

    Args:
        first_tokens, added_tokens, output_tokens: of the first prompt; what each later turn adds, and of an answer, on
            average.
        added_spread, output_spread: each addition and answer is up to so much larger or smaller, as a share; evenly
            spread. 0: all alike.
        rng: draws them; needed where something is spread.
    """
    if min(n_turns, first_tokens, output_tokens) < 1 or min(n_sessions, added_tokens, think_ns) < 0:
        raise ValueError("equal sessions need turns, a prompt and answers of at least one token")
    for number in range(n_sessions):
        added = [first_tokens, *spread_out(added_tokens, n_turns - 1, added_spread, rng)]
        outputs = [max(1, n) for n in spread_out(output_tokens, n_turns, output_spread, rng)]
        yield Session(name=f"s{number}", start_ns=None, turns=tuple(_continued(added, outputs, think_ns)))


def spread_out(mean: int, n: int, spread: float, rng: np.random.Generator | None) -> list[int]:
    """``n`` numbers that sum to ``n * mean``, each up to the share ``spread`` from the mean before they are scaled."""
    if not spread or not n:
        return [mean] * n
    if rng is None:
        raise ValueError("sizes that are spread out need a random generator")
    sums = np.cumsum(rng.uniform(1 - spread, 1 + spread, n))
    bounds = np.rint(sums / sums[-1] * mean * n).astype(np.int64)
    return [int(size) for size in np.diff(bounds, prepend=0)]


def _continued(added: Sequence[int], outputs: Sequence[int], think_ns: int) -> Iterator[Turn]:
    n_context = 0
    for number, (n_new, n_output) in enumerate(zip(added, outputs, strict=True)):
        yield Turn(
            n_prompt_tokens=n_context + n_new,
            n_new_tokens=n_new,
            n_output_tokens=n_output,
            keeps="all" if number else "nothing",
            think_ns=think_ns if number else 0,
        )
        n_context += n_new + n_output

"""Synthetic conversations from fits of real ones: turns, what each adds, its answer, and how long its user thinks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from math import log
from typing import Any

import numpy as np

from traces.sessions.sessions import Session, Turn
from traces.workload.settings import require_choice

MS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalMixture:
    """Whole numbers: a mixture of lognormals, rounded, never outside its ends; 0 with probability ``zero_share``.

    Raises:
        ValueError: the components do not match, or the weights do not sum to 1.
    """

    weights: Sequence[float]
    mu: Sequence[float]
    sigma: Sequence[float]
    least: int
    most: int
    zero_share: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.weights) == len(self.mu) == len(self.sigma) or abs(sum(self.weights) - 1) > 1e-3:
            raise ValueError("a mixture needs as many mu and sigma as weights, which sum to 1")

    def scaled(self, factor: float) -> LognormalMixture:
        """All numbers so many times as large, their bounds as well."""
        return replace(
            self,
            mu=[mu + log(factor) for mu in self.mu],
            least=round(self.least * factor),
            most=round(self.most * factor),
        )

    def draw(self, n: int, rng: np.random.Generator) -> list[int]:
        """Draw ``n`` numbers."""
        shares = np.array(self.weights) / sum(self.weights)
        component = rng.choice(len(shares), n, p=shares)
        drawn = np.exp(np.array(self.mu)[component] + np.array(self.sigma)[component] * rng.standard_normal(n))
        clipped = np.clip(np.rint(drawn), self.least, self.most)
        numbers: list[int] = np.where(rng.random(n) < self.zero_share, 0, clipped).astype(np.int64).tolist()
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFit:
    """Distributions of a kind of conversation; its history is append-only.

    Attributes:
        turns: per session.
        first_tokens, added_tokens: of the first prompt; behind the turn before and its answer.
        output_tokens: of an answer.
        think_ms: from the end of an answer to the next turn.
    """

    turns: LognormalMixture
    first_tokens: LognormalMixture
    added_tokens: LognormalMixture
    output_tokens: LognormalMixture
    think_ms: LognormalMixture

    def sessions(self, rng: np.random.Generator, max_turns: int | None = None) -> Iterator[Session]:
        """Draw conversations without a time, without end.

        Args:
            max_turns: longer ones end there.
        """
        number = 0
        while True:
            n_turns = max(1, min(self.turns.draw(1, rng)[0], max_turns or self.turns.most))
            yield Session(name=f"s{number}", start_ns=None, turns=tuple(self._turns(n_turns, rng)))
            number += 1

    def _turns(self, n_turns: int, rng: np.random.Generator) -> Iterator[Turn]:
        added = [max(self.first_tokens.draw(1, rng)[0], 1), *self.added_tokens.draw(n_turns - 1, rng)]
        outputs = [max(n, 1) for n in self.output_tokens.draw(n_turns, rng)]
        thinking = [0, *self.think_ms.draw(n_turns - 1, rng)]
        n_context = 0
        for turn, (n_new, n_output, think_ms) in enumerate(zip(added, outputs, thinking, strict=True)):
            yield Turn(
                n_prompt_tokens=n_context + n_new,
                n_new_tokens=n_new,
                n_output_tokens=n_output,
                keeps="all" if turn else "nothing",
                think_ns=think_ms * MS,
            )
            n_context += n_new + n_output


def session_fits() -> list[str]:
    """The names of the fits that come with this package."""
    return list(_fits())


def load_session_fit(name: str) -> SessionFit:
    """Load the parameters of a kind of conversation.

    Raises:
        ValueError: there is no fit of that name.
    """
    fits = _fits()
    require_choice("sessions", name, fits)
    return SessionFit(**{key: LognormalMixture(**value) for key, value in fits[name].items() if key != "source"})


def _fits() -> dict[str, dict[str, Any]]:
    return json.loads((files("traces") / "fits" / "sessions.json").read_text(encoding="utf-8"))["sessions"]

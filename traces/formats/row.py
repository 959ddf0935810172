"""What trace files say: an entry as it is recorded, and a row as it is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Pieces = tuple[tuple[str, int], ...]
"""The content of a prompt as (stream, n_tokens): the first tokens of each stream (see ``policies.types.Request``)."""


class Entry(NamedTuple):
    """A request as a file records it, in the order and on the clock of the file.

    Attributes:
        line: where it stands: a line, or an element of a JSON array, from 1.
        time_ns: since whatever the file counts from; ``None`` if it does not say when.
        n_prompt, n_output: tokens, 0 if there were none.
        prompt: what the prompt consists of; ``None`` if the file does not tell contents apart.
        session: requests with the same name are turns of one conversation.
        think_ns: from the end of the turn before to this one, where the file says so.
        end_ns: when its answer had come, on the clock of the file.
        is_error: recorded as failed.
        passages: names of parts of its prompt, whose tokens the file does not say.
        odd: what is unusual about how it is recorded: keys of ``traces.inspect.oddities.ODDITIES``.
    """

    line: int
    time_ns: int | None
    n_prompt: int
    n_output: int
    prompt: Pieces | None = None
    session: str | None = None
    think_ns: int | None = None
    end_ns: int | None = None
    is_error: bool = False
    passages: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """How much memory it takes, in that of an entry or a piece of a prompt."""
        return 1 + len(self.prompt or ())

    @property
    def is_failed(self) -> bool:
        """Nothing went in or nothing came out: a request that was not served."""
        return self.n_prompt == 0 or self.n_output == 0


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A request as a trace recorded it.

    Attributes:
        arrival_ns: since the earliest row of the file.
        n_prompt_tokens, n_output_tokens: as recorded, 0 if there were none.
        prompt: what the prompt consists of, its tokens adding up to ``n_prompt_tokens``; ``None`` if unknown.
        session: requests with the same name are turns of one conversation.
        think_ns: from the end of the turn before to this one, where the trace says so.
    """

    arrival_ns: int
    n_prompt_tokens: int
    n_output_tokens: int
    prompt: Pieces | None = None
    session: str | None = None
    think_ns: int | None = None

    @property
    def is_failed(self) -> bool:
        """Nothing went in or nothing came out: a request that was not served, so it is not replayed."""
        return self.n_prompt_tokens == 0 or self.n_output_tokens == 0


def first_tokens(prompt: Pieces, n_tokens: int) -> Pieces:
    """Cut a prompt behind its first ``n_tokens`` >= 1 tokens."""
    kept: list[tuple[str, int]] = []
    for stream, n in prompt:
        if n_tokens <= 0:
            break
        kept.append((stream, min(n, n_tokens)))
        n_tokens -= n
    return tuple(kept)

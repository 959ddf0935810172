"""What models are asked for: requests, and what one step computes of them.

Many of these are made, so they are neither frozen nor made by keyword, and their constructors are written out: of a
compiled class only those are machine code.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, init=False)
class Request:
    """What a server knows of a request when it arrives. Read only; not frozen nor by keyword, as many are made.

    ``max_output_tokens`` is declared; how many tokens will really come is known to
    nobody but the engine. ``prompt`` names the content as (stream, n_tokens) pieces,
    each the first tokens of that stream, for prefix caching; ``None`` if the trace
    has no identity (then nothing is ever shared).
    """

    request_id: int
    model: int
    arrival_ns: int
    n_prompt_tokens: int
    max_output_tokens: int
    prompt: tuple[tuple[str, int], ...] | None

    def __init__(
        self,
        request_id: int,
        model: int,
        arrival_ns: int,
        n_prompt_tokens: int,
        max_output_tokens: int,
        prompt: tuple[tuple[str, int], ...] | None = None,
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.arrival_ns = arrival_ns
        self.n_prompt_tokens = n_prompt_tokens
        self.max_output_tokens = max_output_tokens
        self.prompt = prompt
        if self.n_prompt_tokens < 1 or self.max_output_tokens < 1:
            raise ValueError(
                f"request {self.request_id}: {self.n_prompt_tokens} prompt and {self.max_output_tokens} "
                "declared output tokens, both must be >= 1"
            )
        if self.prompt is not None and sum(n for _, n in self.prompt) != self.n_prompt_tokens:
            raise ValueError(f"request {self.request_id}: prompt pieces do not add up to {self.n_prompt_tokens}")

    def __reduce__(self) -> tuple[type[Request], tuple[object, ...]]:
        """How it is pickled: of itself a compiled class is not."""
        fields = (self.request_id, self.model, self.arrival_ns, self.n_prompt_tokens, self.max_output_tokens)
        return Request, (*fields, self.prompt)


@dataclass(slots=True, init=False)
class Arrival:
    """A request together with the truth that only the engine may read. Read only, made like ``Request``."""

    request: Request
    n_output_tokens: int

    def __init__(self, request: Request, n_output_tokens: int) -> None:
        self.request = request
        self.n_output_tokens = n_output_tokens
        if not 1 <= self.n_output_tokens <= self.request.max_output_tokens:
            raise ValueError(
                f"request {self.request.request_id}: {self.n_output_tokens} output tokens are outside "
                f"1..{self.request.max_output_tokens} (declared)"
            )

    def __reduce__(self) -> tuple[type[Arrival], tuple[object, ...]]:
        """How it is pickled."""
        return Arrival, (self.request, self.n_output_tokens)


@dataclass(slots=True, init=False)
class Work:
    """What one step computes, as integers that add up: all that a compute model may read.

    Read only; not frozen nor by keyword, as many are made.

    A decode step repeated k times differs only in ``decode_context_tokens``, which
    grows by ``n_decode_seqs`` a step.

    Attributes:
        n_prefill_tokens: prompt tokens computed in this step (cached ones are not).
        n_prefill_seqs: sequences that they belong to.
        prefill_pairs: sum over those of q * (2 * c + q + 1) / 2, the query-key pairs of
            causal attention for q new tokens behind c tokens that are there already.
        n_decode_seqs: sequences that decode one token.
        decode_context_tokens: sum of their contexts, the new token included.
        n_sampled: sequences that go through the head and are sampled.
    """

    n_prefill_tokens: int
    n_prefill_seqs: int
    prefill_pairs: int
    n_decode_seqs: int
    decode_context_tokens: int
    n_sampled: int

    def __init__(
        self,
        n_prefill_tokens: int,
        n_prefill_seqs: int,
        prefill_pairs: int,
        n_decode_seqs: int,
        decode_context_tokens: int,
        n_sampled: int,
    ) -> None:
        self.n_prefill_tokens = n_prefill_tokens
        self.n_prefill_seqs = n_prefill_seqs
        self.prefill_pairs = prefill_pairs
        self.n_decode_seqs = n_decode_seqs
        self.decode_context_tokens = decode_context_tokens
        self.n_sampled = n_sampled

    @property
    def n_tokens(self) -> int:
        """Tokens that pass through the GEMMs."""
        return self.n_prefill_tokens + self.n_decode_seqs

    @property
    def n_seqs(self) -> int:
        """Sequences in the step."""
        return self.n_prefill_seqs + self.n_decode_seqs


def one_token_later(work: Work, n_steps: int = 1) -> Work:
    """What the same decode step computes when it is repeated, or so many repetitions later."""
    n_contexts = work.decode_context_tokens + n_steps * work.n_decode_seqs
    return Work(0, 0, 0, work.n_decode_seqs, n_contexts, work.n_sampled)

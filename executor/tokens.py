"""Token ids: prompts drawn from seeded streams, and what greedy sampling adds to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policies.serving.prefix_cache import OUTPUT
from policies.serving.sequence import Sequence as Served
from policies.types import Request


class PromptTokens:
    """Draws prompts: the same pieces of content give the same ids, in every run.

    Args:
        seed: of every stream.
        vocab: ids are 0..vocab - 1.
    """

    def __init__(self, seed: int, vocab: int) -> None:
        self._seed = seed
        self._vocab = vocab

    def of(self, request: Request, said: Callable[[int], Sequence[int]]) -> list[int]:
        """The ids of a prompt.

        Args:
            said: what another request has answered so far, by its number: a later turn quotes it.

        Raises:
            ValueError: it quotes more than that.
        """
        pieces = request.prompt or ((f"prompt of {request.request_id}", request.n_prompt_tokens),)
        return [token_id for piece in pieces for token_id in self._piece(request, *piece, said)]

    def _piece(
        self, request: Request, stream: str, n_tokens: int, said: Callable[[int], Sequence[int]]
    ) -> Sequence[int]:
        if not stream.startswith(OUTPUT):
            return self._draw(stream, n_tokens)
        answer = said(int(stream.removeprefix(OUTPUT)))
        if len(answer) < n_tokens:
            raise ValueError(
                f"request {request.request_id} quotes {n_tokens} tokens of {stream}, of which {len(answer)} are known; "
                "let it arrive once that request has finished (sessions in a closed loop), or run with python -m sim"
            )
        return answer[:n_tokens]

    def _draw(self, stream: str, n_tokens: int) -> list[int]:
        random = np.random.default_rng([self._seed, *stream.encode()])
        return random.integers(self._vocab, size=n_tokens).tolist()


class Transcript:
    """What is known of one sequence on the device, which its scheduler does not keep.

    Attributes:
        token_ids: prompt and sampled tokens.
        blocks: where its K and V were when it last ran, in order of position.
        n_preemptions: the sequence's when it last ran.
        host_blocks: where its K and V are while it is swapped out.
    """

    __slots__ = ("blocks", "host_blocks", "n_preemptions", "seq", "token_ids")

    def __init__(self, seq: Served, token_ids: list[int]) -> None:
        self.seq = seq
        self.token_ids = token_ids
        self.blocks: list[int] = seq.blocks
        self.n_preemptions = seq.n_preemptions
        self.host_blocks: list[int] = []

    @property
    def answer(self) -> list[int]:
        """Tokens sampled so far."""
        return self.token_ids[self.seq.request.n_prompt_tokens :]

    def sampled(self, n_tokens: int, token_id: int) -> None:
        """Put a token behind the first ``n_tokens``."""
        del self.token_ids[n_tokens:]
        self.token_ids.append(token_id)

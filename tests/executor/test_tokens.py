from __future__ import annotations

from collections.abc import Sequence

import pytest

from executor.tokens import PromptTokens
from policies.types import Request


def request(number: int, *pieces: tuple[str, int]) -> Request:
    return Request(number, 0, 0, sum(n for _, n in pieces), 8, pieces)


def nothing(_number: int) -> Sequence[int]:
    return ()


def test_the_same_pieces_give_the_same_tokens_in_every_prompt() -> None:
    prompts = PromptTokens(3, 1000)
    first = prompts.of(request(0, ("a", 5), ("b", 3)), nothing)
    second = prompts.of(request(1, ("a", 5), ("b", 6)), nothing)
    assert first == second[:8]
    assert first[:5] == prompts.of(request(2, ("a", 7)), nothing)[:5]


def test_a_turn_that_quotes_an_answer_has_its_tokens() -> None:
    answers = {4: [7, 8, 9]}
    prompt = PromptTokens(3, 1000).of(request(5, ("a", 2), ("out4", 2), ("c", 1)), answers.__getitem__)
    assert prompt[2:4] == [7, 8]
    assert len(prompt) == 5


def test_an_answer_that_is_not_known_cannot_be_quoted() -> None:
    with pytest.raises(ValueError, match="request 5 quotes 3 tokens of out4, of which 0 are known"):
        PromptTokens(3, 1000).of(request(5, ("out4", 3)), nothing)

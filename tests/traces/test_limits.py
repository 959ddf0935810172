from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.workload.limits import Limits


@given(
    n_prompt=st.integers(1, 5000),
    n_output=st.integers(1, 5000),
    context=st.integers(2, 4000),
    overlong=st.sampled_from(["drop", "clip"]),
    declared=st.sampled_from([("exact", None), ("fixed", 1), ("fixed", 300), ("context", None)]),
)
def test_fitted_lengths_keep_to_the_context_and_change_only_where_they_must(
    n_prompt: int, n_output: int, context: int, overlong: str, declared: tuple[str, int | None]
) -> None:
    kind, limit = declared
    fitted = Limits(overlong=overlong, declared=kind, declared_tokens=limit).fit(n_prompt, n_output, context)
    stopped = n_output if limit is None else min(n_output, limit)
    is_long = n_prompt + stopped > context
    assert (fitted is None) == (is_long and overlong == "drop")
    if fitted is None:
        return
    assert 1 <= fitted.n_output_tokens <= fitted.max_output_tokens <= context - fitted.n_prompt_tokens
    assert fitted.was_cut == (stopped < n_output)
    assert fitted.was_clipped == is_long
    if not is_long:
        assert (fitted.n_prompt_tokens, fitted.n_output_tokens) == (n_prompt, stopped)
    if kind == "context":
        assert fitted.n_prompt_tokens + fitted.max_output_tokens == context


@pytest.mark.parametrize(
    ("limits", "tokens", "expected"),
    [
        (Limits(overlong="clip"), (3000, 50), (2047, 1, 1)),
        (Limits(overlong="clip"), (2000, 50), (2000, 48, 48)),
        (Limits(declared="fixed", declared_tokens=16), (2000, 500), (2000, 16, 16)),
        (Limits(declared="fixed", declared_tokens=512), (2000, 16), (2000, 16, 48)),
        (Limits(declared="fixed", declared_tokens=512), (100, 16), (100, 16, 512)),
        (Limits(declared="context"), (100, 16), (100, 16, 1948)),
    ],
)
def test_limits_by_example_at_a_context_of_2048(
    limits: Limits, tokens: tuple[int, int], expected: tuple[int, int, int]
) -> None:
    fitted = limits.fit(*tokens, 2048)
    assert fitted is not None
    assert (fitted.n_prompt_tokens, fitted.n_output_tokens, fitted.max_output_tokens) == expected

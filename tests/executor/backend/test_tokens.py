"""What requests say does not depend on who was preempted, swapped, lent or leapt over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.memory.ops import Lend, Load
from policies.recompute import Recompute
from policies.swap import Swap
from policies.types import Arrival
from tests.executor.backend.stage import LENDS_FREELY, Setting, burst, serve

ROOMY = Setting(policy=Recompute(), n_base_blocks=200, leaps=False)


def said(setting: Setting, arrivals: list[Arrival]) -> dict[int, list[int]]:
    """What each request says up to its last token; behind it a sequence may have run once more for nothing."""
    n_tokens = {each.request.request_id: each.request.n_prompt_tokens + each.n_output_tokens for each in arrivals}
    return {number: list(ids[: n_tokens[number]]) for number, ids in serve(setting, arrivals)[2].items()}


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(replace(ROOMY, leaps=True), id="steps together"),
        pytest.param(Setting(policy=Recompute()), id="recompute"),
        pytest.param(Setting(policy=Swap()), id="swap"),
        pytest.param(Setting(policy=LENDS_FREELY), id="lending by mappings"),
        pytest.param(Setting(policy=LENDS_FREELY, vmm="alias"), id="lending by aliases"),
        pytest.param(Setting(policy=replace(LENDS_FREELY, activation="migrate", preemption="swap")), id="migrating"),
        pytest.param(
            Setting(
                policy=LENDS_FREELY, serving=replace(ROOMY.serving, chunked_prefill=True, max_num_batched_tokens=32)
            ),
            id="chunked prefill",
        ),
        pytest.param(Setting(policy=Swap(), serving=replace(ROOMY.serving, async_output=False)), id="synchronous"),
    ],
)
def test_every_request_says_what_it_says_alone(setting: Setting) -> None:
    arrivals = burst()
    assert said(setting, arrivals) == said(ROOMY, arrivals)


V1 = replace(ROOMY.serving, scheduler="vllm_v1", chunked_prefill=True, async_scheduling=False)


def agents() -> list[Arrival]:
    """Requests for both models that come at once and share beginnings of two blocks."""
    return [
        replace(each, request=replace(each.request, prompt=((f"system {nth % 4}", 37), (f"{nth}", n - 37))))
        for nth, each in enumerate(burst())
        for n in [each.request.n_prompt_tokens]
    ]


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(Setting(policy=Recompute(), n_base_blocks=12, serving=V1), id="chunks"),
        pytest.param(
            Setting(policy=Recompute(), n_base_blocks=12, serving=replace(V1, prefix_caching=True)), id="a prefix cache"
        ),
        pytest.param(
            Setting(policy=Recompute(), n_base_blocks=60, serving=replace(V1, prefix_caching=True)),
            id="a prefix cache with room",
        ),
        pytest.param(
            Setting(n_base_blocks=12, serving=replace(V1, prefix_caching=True)), id="lending, with a prefix cache"
        ),
    ],
)
def test_under_v1_every_request_says_what_it_says_alone(setting: Setting) -> None:
    arrivals = agents()
    assert said(setting, arrivals) == said(ROOMY, arrivals)


def test_under_v1_prefixes_are_found_again() -> None:
    journal = serve(Setting(policy=Recompute(), n_base_blocks=60, serving=replace(V1, prefix_caching=True)), agents())[
        1
    ]
    assert sum(row.n_hit_tokens for row in journal.requests) > 0


def test_the_burst_is_one_that_makes_a_difference() -> None:
    arrivals = burst()
    assert any(each.n_preemptions for each in serve(Setting(policy=Recompute()), arrivals)[1].requests)
    assert any(step.n_swapped_out for step in serve(Setting(policy=Swap()), arrivals)[1].compositions)
    ops = serve(Setting(), arrivals)[0].ops
    assert any(isinstance(op, Lend) and op.lender == op.borrower for op in ops)
    assert any(isinstance(op, Lend) and op.lender != op.borrower for op in ops)
    assert any(isinstance(op, Load) for op in ops)

"""How many tokens of a request a step computes.

Source: vLLM 0.15.1, v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from policies.serving.sequence import Sequence
from policies.serving.vllm_v1.settings import V1Settings


def n_to_continue(seq: Sequence, settings: V1Settings, n_tokens_left: int) -> int:
    """New tokens of a running request, 0 if it is passed over in this step.

    Under async scheduling the token that the step under way samples is not known yet, but has its place.
    """
    has_token_under_way = seq.n_slots >= seq.n_tokens
    if has_token_under_way and seq.n_output + 1 >= seq.request.max_output_tokens:
        return 0  # that token is its last
    n_new = _shortened(1 if has_token_under_way else seq.n_tokens - seq.n_slots, settings)
    n_new = min(n_new, n_tokens_left, settings.max_model_len - 1 - seq.n_slots)
    return _aligned(seq, seq.n_slots, n_new, settings)


def n_to_begin(seq: Sequence, n_cached: int, settings: V1Settings, n_tokens_left: int) -> int:
    """New tokens of a waiting request behind those that were hit, 0 if it cannot begin in this step.

    One that was preempted has its output computed again like a prompt.
    """
    n_new = _shortened(seq.n_tokens - n_cached, settings)
    if not settings.chunked_prefill and n_new > n_tokens_left:
        return 0
    return _aligned(seq, n_cached, min(n_new, n_tokens_left), settings)


def _shortened(n_new: int, settings: V1Settings) -> int:
    longest = settings.long_prefill_tokens
    return longest if 0 < longest < n_new else n_new


def _aligned(seq: Sequence, n_before: int, n_new: int, settings: V1Settings) -> int:
    """Cut a piece of a hybrid model's prompt at a block boundary, and the last one at the last boundary: states
    are kept only where a step ends."""
    if not settings.aligns_states or seq.n_output:
        return n_new
    size = settings.block_tokens
    last = seq.request.n_prompt_tokens // size * size
    if n_before + n_new < last:
        return n_new // size * size
    if n_before < last < n_before + n_new:
        return last - n_before
    return n_new

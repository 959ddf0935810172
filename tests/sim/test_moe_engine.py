"""VAMP from end to end: sessions, scheduler, policy, ledger and simulated ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from policies.costs import Coefficients
from policies.decision import Reason
from policies.engine import Outcome
from policies.lru_experts import LruExperts
from policies.recompute import Recompute
from policies.types import MIB
from policies.vamp import Vamp
from tests.sim.moe_world import SERVING, Served, serve
from traces.sessions.closed_loop import equal_sessions
from traces.sessions.sessions import Session

KV_MIB = 700  # 109 blocks of 544 tokens: room for the first two turns of six sessions


def sessions(n: int = 6, *, think_ms: int = 0) -> Iterator[Session]:
    """Contexts of up to 8,300 tokens, 15 blocks and up to three states each."""
    return equal_sessions(
        n, n_turns=4, first_tokens=3000, added_tokens=1500, output_tokens=200, think_ns=think_ms * 1_000_000
    )


def reasons(served: Served) -> list[Reason]:
    return [decision.reason for _, _, decision in served.log.decisions]


def facts(served: Served) -> tuple[object, ...]:
    """All that must not depend on how many steps are submitted at once."""
    log = served.log
    decisions = [(now_ns, decision) for now_ns, _, decision in log.decisions]
    pool = served.lane.scheduler.pool
    return (
        log.finished,
        decisions,
        log.n_steps,
        log.n_preempted,
        log.stall_ns,
        served.end_ns,
        pool.n_blocks,
        pool.n_free,
    )


def test_while_everything_fits_nobody_is_asked() -> None:
    served = serve(Vamp(), sessions(2), kv_mib=2000)
    assert served.outcome is Outcome.DONE
    assert not served.log.decisions
    assert facts(served) == facts(serve(Recompute(), sessions(2), kv_mib=2000))


def test_experts_make_room_for_sessions_that_would_lose_their_prefixes() -> None:
    lending, plain = serve(Vamp(), sessions(), kv_mib=KV_MIB), serve(Recompute(), sessions(), kv_mib=KV_MIB)
    assert lending.outcome is plain.outcome is Outcome.DONE
    assert Reason.OFFLOAD in reasons(lending)
    assert sum(int(str(row[5])) for row in lending.log.finished) > sum(int(str(row[5])) for row in plain.log.finished)
    assert lending.log.n_preempted < plain.log.n_preempted
    experts = lending.ledger.experts[0]
    assert experts is not None
    assert experts.n_increments > 0
    n_blocks = (KV_MIB * MIB + experts.offloaded_bytes) // lending.lane.block_bytes
    assert abs(lending.lane.scheduler.pool.n_blocks - n_blocks) <= 1  # whole pages


def test_staged_experts_are_waited_for() -> None:
    assert serve(Vamp(), sessions(), kv_mib=KV_MIB).log.stall_ns > 0
    assert serve(Recompute(), sessions(), kv_mib=KV_MIB).log.stall_ns == 0


def test_every_choice_says_what_each_option_would_have_cost() -> None:
    for _, view, decision in serve(Vamp(), sessions(), kv_mib=KV_MIB).log.decisions:
        assert decision.costs is not None
        assert view.shortage is not None
        assert decision.costs.cheapest is not None


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        Recompute(),
        Vamp(),
        Vamp(max_offloaded_fraction=0.02),
        Vamp(coefficients=Coefficients(reload_us=1e9)),
        Vamp(coefficients=Coefficients(reload_us=1e9, preempt_us=0, queue_us=0)),
        Vamp(restore=True, hysteresis_steps=5, spare_margin=0.0),
    ],
    ids=["vllm", "vamp", "small_cap", "evicting", "preempting", "restoring"],
)
def test_results_are_the_same_for_any_number_of_steps_at_once(policy: Vamp | Recompute, is_async: bool) -> None:
    serving = replace(SERVING, max_num_seqs=4, async_scheduling=is_async)
    leaping = serve(policy, sessions(think_ms=500), kv_mib=KV_MIB, serving=serving)
    stepping = serve(policy, sessions(think_ms=500), kv_mib=KV_MIB, serving=serving, leaps=False)
    assert leaping.outcome is Outcome.DONE
    assert facts(leaping) == facts(stepping)
    assert leaping.log.n_submissions < stepping.log.n_submissions


def test_experts_come_back_while_memory_is_idle_if_that_is_wanted() -> None:
    policy = Vamp(restore=True, hysteresis_steps=5, spare_margin=0.0)
    served = serve(policy, sessions(think_ms=500), kv_mib=KV_MIB)
    assert Reason.RESTORE in reasons(served)
    never = serve(replace(policy, restore=False), sessions(think_ms=500), kv_mib=KV_MIB)
    assert Reason.RESTORE not in reasons(never)


def test_without_experts_to_offload_blocks_are_evicted_or_requests_preempted() -> None:
    served = serve(Vamp(max_offloaded_fraction=0.0), sessions(), kv_mib=KV_MIB)
    assert set(reasons(served)) <= {Reason.EVICT, Reason.PREEMPT}
    assert served.ledger.increments == (0,)


def test_experts_fetched_on_demand_stall_every_step_and_their_memory_is_kv_cache_from_the_start() -> None:
    fetching, staging = (serve(policy, sessions(), kv_mib=KV_MIB) for policy in (LruExperts(), Vamp()))
    full = fetching.ledger.experts[0]
    assert full is not None
    assert full.n_groups_left == 0
    n_blocks = (KV_MIB * MIB + full.offloaded_bytes) // fetching.lane.block_bytes
    assert abs(fetching.lane.scheduler.pool.n_base - n_blocks) <= 1  # whole pages
    assert fetching.log.stall_ns > staging.log.stall_ns
    assert not fetching.log.decisions


def test_an_oracle_does_not_evict_what_will_be_hit_while_experts_are_left() -> None:
    served = serve(Vamp(foresight=True), sessions(), kv_mib=KV_MIB)
    for _, view, decision in served.log.decisions:
        assert view.shortage is not None
        reused = {victim.block: victim.is_reused for victim in view.shortage.victims}
        if decision.reason is Reason.EVICT and decision.costs is not None and decision.costs.offload_us is not None:
            assert sum(bool(reused[block]) for block in decision.evict) <= 1  # one costs 8 ms, an offload up to that

"""KV cache in host memory as time: closed forms, and the copies of an exchange played layer by layer on the link."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies.memory.residency import HostKv, HostUse
from policies.remap.host_kv import attend_ns, exchange_ns
from policies.types import HardwareProfile, LinkProfile, ModelShape, Work
from sim.compute.base import ends_of
from sim.host_kv import HostKvCost
from sim.link import Link
from sim.pipeline import Pipeline

GH200 = HardwareProfile(
    name="gh200",
    hbm_bytes=10**11,
    hbm_bytes_per_s=4 * 10**12,
    page_bytes=2**21,
    link=LinkProfile(h2d_bytes_per_s=427 * 10**9, d2h_bytes_per_s=297 * 10**9, joint_bytes_per_s=366 * 10**9),
    cpu_attention_bytes_per_s=400 * 10**9,
    cpu_layer_ns=32_000,
)
SHAPE = ModelShape(
    name="tiny",
    n_layers=40,
    hidden=1,
    n_heads=40,
    n_kv_heads=40,
    head_dim=128,
    ffn=1,
    vocab=1,
    gated_mlp=False,
    layer_bytes=1,
    total_bytes=40,
    max_context_tokens=2048,
)
DECODES = Work(0, 0, 0, 8, 8 * 330, 8)
LAYER_NS = 300_000


class Constant:
    """Layers that take 300 us, and 100 ns for a token of context; no host, no head."""

    def layer_ns(self, work: Work) -> int:
        return LAYER_NS + 100 * work.decode_context_tokens

    def repeated_layer_ns(self, work: Work, n_steps: int) -> list[int]:
        contexts = (work.decode_context_tokens + nth * work.n_decode_seqs for nth in range(n_steps))
        return [LAYER_NS + 100 * n_tokens for n_tokens in contexts]

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """See ``ends_of``."""
        return ends_of(self.repeated_layer_ns(work, n_steps), start_ns, n_layers, rest_ns, stop_ns)

    def head_ns(self, work: Work) -> int:  # noqa: ARG002
        return 0

    def host_ns(self, work: Work) -> int:  # noqa: ARG002
        return 0


def step_of(held: HostKv, work: Work = DECODES) -> tuple[int, int, int]:
    """Length, device time and stall of one step."""
    cost = HostKvCost(SHAPE, GH200)
    cost.held = held
    pipeline = Pipeline([1] * SHAPE.n_layers, Link(GH200.link))
    (end_ns,), (compute_ns,), (stall_ns,), _ = cost.steps(pipeline, Constant(), work, 1, 0, 10**18, 0)
    return end_ns, compute_ns, stall_ns


def held(n_bytes: int, use: HostUse) -> HostKv:
    return HostKv(1, 1, n_bytes, use)


@given(st.integers(1, 10**10))
def test_an_exchange_costs_what_computation_does_not_hide_of_it(n_bytes: int) -> None:
    plain_ns = SHAPE.n_layers * Constant().layer_ns(DECODES)
    end_ns, compute_ns, stall_ns = step_of(held(n_bytes, HostUse.EXCHANGE))
    # Golden: 183 GB/s each way, half of MIRAGE's 366 (section 3.2).
    assert abs(end_ns - max(plain_ns, n_bytes / 183)) <= 1
    assert (compute_ns, stall_ns) == (plain_ns, end_ns - plain_ns)


def test_an_exchange_block_by_block_takes_its_copies_beside_its_bytes() -> None:
    # Golden: 2 units of 183 MB at 183 GB/s each way are 2 ms, their copies 2 x 30 ms: far more than 40 layers take.
    end_ns, _, _ = step_of(HostKv(2, 1, 183_000_000, HostUse.EXCHANGE, 30_000_000))
    assert end_ns == 62_000_000


@given(st.integers(1, 20), st.sampled_from([10**8, 10**9, 2 * 10**9, 4 * 10**9, 8 * 10**9]))
def test_the_copies_of_an_exchange_played_layer_by_layer_take_as_long(n_ahead: int, n_bytes: int) -> None:
    """A layer's part goes out when the layer is done, another comes into its place when it has gone.

    The part of layer i is fetched into the place that layer i - n_ahead has left: in the steady state a step is as
    long as the closed form says, and a few layers' copies at most.
    """
    n_layers, part_bytes = SHAPE.n_layers, n_bytes // SHAPE.n_layers
    link, now_ns, ends_ns = Link(GH200.link), 0, list[int]()
    fetches = [link.h2d(part_bytes, 0) for _ in range(n_ahead)]
    for _ in range(6):
        for _ in range(n_layers):
            now_ns = max(now_ns, fetches.pop(0).end_ns) + LAYER_NS
            gone_ns = link.d2h(part_bytes, now_ns).end_ns
            fetches.append(link.h2d(part_bytes, max(now_ns, gone_ns)))
        ends_ns.append(now_ns)
    step_ns = (ends_ns[-1] - ends_ns[1]) / 4
    ideal_ns = max(n_layers * LAYER_NS, exchange_ns(n_bytes, GH200))
    assert step_ns >= 0.99 * ideal_ns
    if n_ahead >= 4:  # with a single place nothing overlaps: that is not Pie
        assert step_ns <= 1.05 * ideal_ns + 4 * part_bytes / 183


def test_the_cpu_takes_its_part_of_the_context_off_the_gpu() -> None:
    token_bytes = SHAPE.kv_bytes_per_token
    end_ns, compute_ns, stall_ns = step_of(held(1000 * token_bytes, HostUse.ATTEND))
    assert compute_ns == SHAPE.n_layers * (LAYER_NS + 100 * (8 * 330 - 1000))
    cpu_ns = attend_ns(1000 * token_bytes, 40, GH200)
    assert cpu_ns == 40 * 32_000 + -(-1000 * token_bytes // 400)
    assert end_ns == max(compute_ns, cpu_ns)
    assert stall_ns == end_ns - compute_ns


def test_streaming_on_demand_hides_nothing() -> None:
    plain_ns = SHAPE.n_layers * Constant().layer_ns(DECODES)
    end_ns, _, stall_ns = step_of(held(427_000_000, HostUse.STREAM))
    assert (end_ns, stall_ns) == (plain_ns + 1_000_000, 1_000_000)


@given(st.sampled_from(HostUse), st.integers(1, 3000), st.integers(1, 12))
def test_repeated_steps_end_as_single_ones_do(use: HostUse, n_tokens: int, n_steps: int) -> None:
    cost = HostKvCost(SHAPE, GH200)
    cost.held = held(n_tokens * SHAPE.kv_bytes_per_token, use)
    pipeline = Pipeline([1] * SHAPE.n_layers, Link(GH200.link))
    ends_ns, *_ = cost.steps(pipeline, Constant(), DECODES, n_steps, 0, 10**18, 0)
    now_ns = 0
    for nth, end_ns in enumerate(ends_ns):
        work = replace(DECODES, decode_context_tokens=8 * 330 + nth * 8)
        (now_ns,), *_ = cost.steps(pipeline, Constant(), work, 1, now_ns, 10**18, 0)
        assert now_ns == end_ns

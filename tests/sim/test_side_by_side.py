"""Lanes in flight at once: closed forms, a machine of its share alone, and an independent model in SimPy."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from simpy import Environment, Event

from policies.backend import Batch, Change
from policies.engine import Outcome
from policies.memory.ops import Cycle
from policies.recompute import Recompute
from policies.remap.which_layers import evenly_spaced
from policies.serving.tenancy import Mig, Mps
from policies.types import GB, HardwareProfile, LinkProfile, ModelShape, Work
from sim.compute.base import ends_of
from sim.pipeline_events import EventPipeline
from sim.side_by_side.backend import SideBySideBackend
from sim.side_by_side.device import ONE, SharedDevice, SlicedDevice, Use
from sim.vmm import VmmCost
from tests.engine.strategies import cases
from tests.engine.worlds import TENANCY, Setup, serve
from tests.sim.shared_gpu import LaneWire, SharedGpu, fair_speeds

FAR_NS = 10**15
LINK = LinkProfile(h2d_bytes_per_s=GB, d2h_bytes_per_s=GB, joint_bytes_per_s=GB)
ALL = Use(ONE, ONE)
uses = st.builds(Use, st.integers(0, ONE), st.integers(0, ONE))


@dataclass(frozen=True)
class Step:
    """Idle time before a step, host time, device time of a layer and of the head."""

    idle_ns: int = 0
    host_ns: int = 0
    layer_ns: int = 1000
    head_ns: int = 0


@dataclass(frozen=True)
class Model:
    """A model, which of its layers cycle, through how many slots, and what it computes."""

    steps: tuple[Step, ...] = (Step(),)
    n_layers: int = 4
    layer_bytes: int = 1000
    n_cycling: int = 0
    n_slots: int = 1
    use: Use = ALL

    def shape(self) -> ModelShape:
        return ModelShape(
            name="any", n_layers=self.n_layers, hidden=1, n_heads=1, n_kv_heads=1, head_dim=1, ffn=1, vocab=1,
            gated_mlp=False, layer_bytes=self.layer_bytes, total_bytes=self.n_layers * self.layer_bytes, dtype_bytes=1,
            max_context_tokens=64,
        )  # fmt: skip

    @property
    def cycle(self) -> tuple[int, ...]:
        return evenly_spaced(self.n_layers, self.n_cycling) if self.n_cycling else ()


@dataclass(frozen=True)
class Planned:
    """Compute times and demands of the nth step: a batch names it by its sequences."""

    model: Model

    def step(self, work: Work) -> Step:
        return self.model.steps[work.n_decode_seqs]

    def layer_ns(self, work: Work) -> int:
        return self.step(work).layer_ns

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Sequence[int]:
        return [self.layer_ns(work)] * n_steps

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """See ``ends_of``."""
        return ends_of(self.repeated_layer_ns(work, n_steps), start_ns, n_layers, rest_ns, stop_ns)

    def head_ns(self, work: Work) -> int:
        return self.step(work).head_ns

    def host_ns(self, work: Work) -> int:
        return self.step(work).host_ns

    def layer(self, work: Work) -> Use:
        del work
        return self.model.use

    head = layer


def nth_step(nth: int) -> Batch:
    return Batch(Work(0, 0, 0, nth, 0, 0))


def open_backend(models: Sequence[Model], device: SharedDevice | SlicedDevice) -> SideBySideBackend:
    hardware = HardwareProfile(
        name="any", hbm_bytes=1 << 30, hbm_bytes_per_s=GB, page_bytes=32, link=LINK, cpu_attention_bytes_per_s=GB,
        cpu_layer_ns=1,
    )  # fmt: skip
    plans = [Planned(model) for model in models]
    backend = SideBySideBackend(
        [model.shape() for model in models], hardware, plans, plans, device, vmm=VmmCost(range_ns=0, page_ns=0)
    )
    for lane, model in enumerate(models):
        if model.cycle:
            backend.apply(Change((Cycle(lane, model.cycle, model.cycle[: model.n_slots]),)))
    return backend


def played(models: Sequence[Model], device: SharedDevice | SlicedDevice) -> list[list[int]]:
    """When each step of each model ends, one behind the other with its idle time before it."""
    backend = open_backend(models, device)
    ends_ns: list[list[int]] = [[] for _ in models]
    due_ns = {lane: model.steps[0].idle_ns for lane, model in enumerate(models)}
    running = 0
    while due_ns or running:
        for lane in [lane for lane, at_ns in due_ns.items() if at_ns == backend.now_ns]:
            backend.submit(lane, nth_step(len(ends_ns[lane])), 1, FAR_NS)
            del due_ns[lane]
            running += 1
        report = backend.advance(min(due_ns.values(), default=FAR_NS))
        if report is not None:
            running -= 1
            ends_ns[report.lane] += report.ends_ns
            if len(ends_ns[report.lane]) < len(models[report.lane].steps):
                due_ns[report.lane] = backend.now_ns + models[report.lane].steps[len(ends_ns[report.lane])].idle_ns
    return ends_ns


def played_by_events(models: Sequence[Model], interference: Fraction) -> list[list[int]]:
    """The same with processes and events."""
    env = Environment()
    gpu = SharedGpu(env, LINK, interference)
    ends_ns: list[list[int]] = [[] for _ in models]

    def run(lane: int, model: Model) -> Generator[Event, Any, None]:
        wire = LaneWire(gpu, lane)
        wire.demand = Fraction(model.use.compute, ONE), Fraction(model.use.hbm, ONE)
        pipeline = EventPipeline(env, wire, [model.layer_bytes] * model.n_layers)  # type: ignore[arg-type]
        if model.cycle:
            pipeline.set_cycle(model.cycle, model.cycle[: model.n_slots])
        for step in model.steps:
            yield env.timeout(step.idle_ns)
            yield from pipeline.step([step.layer_ns] * model.n_layers, step.host_ns, step.head_ns)
            ends_ns[lane].append(int(env.now))

    runs = [env.process(run(lane, model)) for lane, model in enumerate(models)]
    env.run(until=env.all_of(runs))
    return ends_ns


@pytest.mark.parametrize("n_lanes", [1, 2, 3, 5])
def test_equal_lanes_that_need_all_of_the_gpu_each_take_as_many_times_longer_as_they_are(n_lanes: int) -> None:
    step = Step(layer_ns=60_000)
    ends_ns = played([Model(steps=(step,) * 3)] * n_lanes, SharedDevice())
    alone_ns = 4 * 60_000
    for lane in ends_ns:
        for nth, end_ns in enumerate(lane, start=1):
            assert end_ns == pytest.approx(nth * n_lanes * alone_ns, rel=2e-6)


def test_one_that_multiplies_and_one_that_reads_cost_each_other_nothing() -> None:
    models = [Model(use=Use(ONE, 0)), Model(use=Use(0, ONE))]
    assert played(models, SharedDevice()) == [[4000], [4000]]


def test_what_computes_beside_another_takes_longer_by_the_interference_and_alone_it_does_not() -> None:
    long, short = Model(steps=(Step(layer_ns=3000),), use=Use(ONE, 0)), Model(use=Use(0, ONE))
    # Together 4000 ns of each take 5000; the other 8000 ns of the long one go on alone.
    assert played([long, short], SharedDevice(ONE // 4)) == [[5000 + 8000], [5000]]


def test_a_lane_speeds_up_when_another_ends() -> None:
    models = [Model(steps=(Step(layer_ns=3000),)), Model()]
    # Half as fast for 8000 ns, in which each does 4000; then the first has 8000 left.
    assert played(models, SharedDevice()) == [[16_000], [8000]]


def test_the_host_of_one_lane_takes_nothing_from_another() -> None:
    models = [Model(steps=(Step(host_ns=5000),)), Model()]
    assert played(models, SharedDevice()) == [[5000 + 4000], [4000]]


def test_on_slices_nothing_but_the_link_is_shared() -> None:
    model = Model(steps=(Step(),) * 3, n_cycling=2, layer_bytes=4000)
    alone, together = played([model], SlicedDevice()), played([model, model], SlicedDevice())
    resident = replace(model, n_cycling=0)
    assert played([resident] * 2, SlicedDevice()) == [[4000, 8000, 12_000]] * 2
    assert together[0] == together[1]
    assert together[0][-1] > alone[0][-1]  # each fetch takes twice as long beside the other's


@given(st.lists(uses, min_size=1, max_size=4))
def test_speeds_are_max_min_fair_and_no_resource_is_used_more_than_there_is(wanted: list[Use]) -> None:
    speeds = SharedDevice().speeds(wanted)
    fair = fair_speeds({lane: (Fraction(use.compute, ONE), Fraction(use.hbm, ONE)) for lane, use in enumerate(wanted)})
    for lane, speed in enumerate(speeds):
        assert 0 <= fair[lane] * ONE - speed < 8  # rounded down, for each resource that was filled before
    for resource in (0, 1):
        used = sum(speed * (use.compute, use.hbm)[resource] for speed, use in zip(speeds, wanted, strict=True))
        assert used <= ONE * ONE


steps = st.builds(
    Step,
    idle_ns=st.sampled_from([0, 0, 1, 700, 30_000]),
    host_ns=st.integers(0, 3000),
    layer_ns=st.integers(100, 5000),
    head_ns=st.integers(0, 3000),
)
models = st.builds(
    Model,
    steps=st.lists(steps, min_size=1, max_size=5).map(tuple),
    n_layers=st.integers(2, 9),
    layer_bytes=st.sampled_from([300, 2000, 9000]),
    n_cycling=st.integers(0, 2),
    n_slots=st.integers(1, 2),
    use=uses,
)


@given(st.lists(models, min_size=1, max_size=3), st.sampled_from([0, ONE // 10]))
def test_events_in_simpy_end_every_step_when_the_backend_does(some: list[Model], interference: int) -> None:
    backend, events = played(some, SharedDevice(interference)), played_by_events(some, Fraction(interference, ONE))
    for lane, ends_ns in enumerate(backend):
        # Each of at most 5 x 40 events rounds up to a nanosecond on either side; speeds to a millionth or so.
        assert ends_ns == pytest.approx(events[lane], rel=1e-4, abs=200)


@given(cases(policy=st.just(Recompute())))
def test_under_mig_each_model_ends_its_requests_as_if_the_others_had_none(case: tuple[Setup, list[Any]]) -> None:
    setup, arrivals = case
    n_models = len(setup.models)
    serving = replace(setup.serving, share_idle_kv=False)
    setup = replace(setup, tenancy=Mig(shares=(1 / n_models,) * n_models), serving=serving, world="sim")
    outcome, together = serve(setup, arrivals)
    assume(outcome is Outcome.DONE)  # where a request can never run, all of them decide when to give up
    for model in range(n_models):
        _, alone = serve(setup, [arrival for arrival in arrivals if arrival.request.model == model])
        assert [each for each in together.requests if each.model == model] == alone.requests
        assert [step for step in together.steps if step.lane == model] == alone.steps


@given(cases())
def test_a_model_with_the_gpu_to_itself_runs_as_under_temporal_sharing(case: tuple[Setup, list[Any]]) -> None:
    setup, arrivals = case
    serving = setup.serving
    assume(not setup.policy.keeps_kv_on_host)
    assume(serving.scheduler == "vllm_v0")
    serving = replace(serving, share_idle_kv=False)
    setup = replace(setup, models=setup.models[:1], serving=serving, world="sim", slowdown_ppm=0)
    mine = [arrival for arrival in arrivals if arrival.request.model == 0]
    (outcome, in_turns), (_, beside) = (
        serve(replace(setup, tenancy=tenancy), mine) for tenancy in (TENANCY, Mps(interference=0.5))
    )
    assume(outcome is Outcome.DONE)
    assert beside.requests == in_turns.requests
    assert beside.steps == in_turns.steps
    assert beside.gap_counts == in_turns.gap_counts
    assert beside.memory == in_turns.memory
    changes = [
        [(each.at_ns, each.decision) for each in tables.decisions if each.changed] for tables in (beside, in_turns)
    ]
    assert changes[0] == changes[1]

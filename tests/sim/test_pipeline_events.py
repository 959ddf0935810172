from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment, Event

from policies.remap.which_layers import contiguous, evenly_spaced, nested_order
from sim.link import Link
from sim.pipeline import Pipeline
from sim.pipeline_events import EventPipeline
from sim.wire import Wire
from tests.sim.pipelines import BYTE_A_NS

Placed = tuple[tuple[int, ...], tuple[int, ...]]
"""Cycling layers, and the homes that are their slots."""


@dataclass(frozen=True)
class Stretch:
    """Some steps with one cycle."""

    placed: Placed
    loads: tuple[tuple[int, int], ...]
    steps: tuple[tuple[int, int, int], ...]
    """Idle time before the step, host time, time of the head."""


@dataclass(frozen=True)
class Model:
    layer_bytes: tuple[int, ...]
    layer_ns: tuple[int, ...]
    static_slots: bool
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True)
class Case:
    """Models that take turns, a stretch each, over one link."""

    models: tuple[Model, ...]
    slowdown_ppm: int = 0

    def turns(self) -> list[tuple[int, Stretch]]:
        longest = max(len(model.stretches) for model in self.models)
        in_turn = [
            (lane, model.stretches[turn : turn + 1])
            for turn in range(longest)
            for lane, model in enumerate(self.models)
        ]
        return [(lane, stretch) for lane, stretches in in_turn for stretch in stretches]


@st.composite
def placements(draw: st.DrawFn, n_layers: int) -> Placed:
    n_slots = draw(st.integers(1, 3))
    n_cycling = draw(st.integers(0, n_layers))
    match draw(st.sampled_from(("even", "nested", "contiguous", "random"))):
        case "even":
            cycling = evenly_spaced(n_layers, n_cycling)
        case "nested":
            cycling = tuple(sorted(nested_order(n_layers)[:n_cycling]))
        case "contiguous":
            cycling = contiguous(n_layers, n_cycling)
        case _:
            cycling = tuple(sorted(draw(st.permutations(range(n_layers)))[:n_cycling]))
    homes = st.permutations(range(n_layers)) if draw(st.booleans()) else st.just([*cycling, *range(n_layers)])
    slots = tuple(dict.fromkeys(draw(homes)))[:n_slots]
    return cycling, slots if cycling else ()


@st.composite
def models(draw: st.DrawFn, *, n_stretches: int) -> Model:
    n_layers = draw(st.integers(3, 16))
    times = st.integers(1, 100) if draw(st.booleans()) else st.just(draw(st.integers(1, 100)))
    fetch_most = draw(st.sampled_from((10, 100, 1000)))
    layer = st.integers(0, n_layers - 1)
    step = st.tuples(st.sampled_from((0, 0, 50, 5000)), st.integers(0, 50), st.integers(0, 50))
    stretch = st.builds(
        Stretch,
        placements(n_layers),
        st.lists(st.tuples(layer, layer), max_size=1 if n_stretches > 1 else 0).map(tuple),
        st.lists(step, min_size=1, max_size=5).map(tuple),
    )
    return Model(
        layer_bytes=tuple(draw(st.lists(st.integers(1, fetch_most), min_size=n_layers, max_size=n_layers))),
        layer_ns=tuple(draw(st.lists(times, min_size=n_layers, max_size=n_layers))),
        static_slots=draw(st.booleans()),
        stretches=tuple(draw(st.lists(stretch, min_size=1, max_size=n_stretches))),
    )


@settings(max_examples=1000, deadline=None)
@given(models(n_stretches=1))
def test_recurrence_and_processes_agree_to_the_nanosecond(model: Model) -> None:
    case = Case((model,))
    assert by_recurrence(case) == by_processes(case)


@settings(max_examples=200, deadline=None)
@given(st.lists(models(n_stretches=3), min_size=1, max_size=2).map(tuple), st.integers(0, 300_000))
def test_they_agree_when_models_take_turns_cycles_change_layers_load_and_copies_slow_computation(
    served: tuple[Model, ...], slowdown_ppm: int
) -> None:
    case = Case(served, slowdown_ppm)
    assert by_recurrence(case) == by_processes(case)


@settings(max_examples=100, deadline=None)
@given(models(n_stretches=1), st.integers(1, 100))
def test_equal_layers_may_be_given_as_one_number(model: Model, layer_ns: int) -> None:
    case = Case((replace(model, layer_ns=(layer_ns,) * len(model.layer_ns)),))
    assert by_recurrence(case, layer_ns) == by_recurrence(case)


def by_recurrence(case: Case, layer_ns: int | None = None) -> list[tuple[int, int]]:
    link = Link(BYTE_A_NS, case.slowdown_ppm)
    pipelines = [Pipeline(model.layer_bytes, link, static_slots=model.static_slots) for model in case.models]
    results: list[tuple[int, int]] = []
    now_ns = 0
    for lane, stretch in case.turns():
        for layer, home in stretch.loads:
            pipelines[lane].load(layer, home, now_ns)
        pipelines[lane].set_cycle(*stretch.placed, at_ns=now_ns)
        for idle_ns, before_ns, after_ns in stretch.steps:
            layers_ns = layer_ns or case.models[lane].layer_ns
            results.append(pipelines[lane].step(now_ns + idle_ns, layers_ns, before_ns, after_ns))
            now_ns = results[-1][0]
    return results


def by_processes(case: Case) -> list[tuple[int, int]]:
    env = Environment()
    wire = Wire(env, BYTE_A_NS, case.slowdown_ppm)
    pipelines = [EventPipeline(env, wire, model.layer_bytes, static_slots=model.static_slots) for model in case.models]
    results: list[tuple[int, int]] = []

    def serve() -> Generator[Event, Any, None]:
        for lane, stretch in case.turns():
            yield env.timeout(0)  # a slot that its reader leaves now is refilled before the cycle changes
            for layer, home in stretch.loads:
                pipelines[lane].load(layer, home)
            pipelines[lane].set_cycle(*stretch.placed)
            for idle_ns, before_ns, after_ns in stretch.steps:
                yield env.timeout(idle_ns)
                results.append((yield from pipelines[lane].step(case.models[lane].layer_ns, before_ns, after_ns)))

    env.run(env.process(serve()))
    return results

"""What a world refuses has not happened, and the engine goes on."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from policies.backend import Change
from policies.decision import Reason
from policies.engine import Outcome
from policies.memory.ops import Lend, Load, Withdraw
from policies.mirage import Mirage
from policies.recompute import Recompute
from policies.types import Arrival
from tests.engine.auditor import Auditor, CountedLengths, Watched
from tests.engine.null_backend import NullBackend
from tests.engine.strategies import cases, mirages, thorough
from tests.engine.worlds import Setup, TinyModel, arrival, open_scene, serve


def serve_refusing(
    setup: Setup, arrivals: list[Arrival], refused_share: float, seed: int = 0
) -> tuple[Outcome, Auditor]:
    """Run on a device that refuses some of what is decided; the auditor sees to it that then nothing has changed."""
    rng, truth, policy = Random(seed), CountedLengths(), Watched(setup.policy)
    auditor = Auditor(truth)
    scene = open_scene(replace(setup, policy=policy, world="null"), auditor, truth)
    assert isinstance(scene.backend, NullBackend)

    def refuses(change: Change) -> bool:
        is_decision = any(isinstance(op, Lend | Load | Withdraw) for op in change.ops)
        return is_decision and rng.random() < refused_share

    scene.backend.refuses = refuses
    auditor.watch(scene, policy)
    return scene.run(arrivals), auditor


@thorough
@given(cases(mirages), st.sampled_from([0.2, 0.7, 1.0]), st.integers(0, 2**20))
def test_whatever_a_device_refuses_the_books_agree_with_it(
    case: tuple[Setup, list[Arrival]], refused_share: float, seed: int
) -> None:
    outcome, _ = serve_refusing(*case, refused_share, seed)
    assert outcome is not Outcome.STOPPED


def test_a_device_that_refuses_everything_serves_like_a_system_without_lending() -> None:
    setup = Setup(policy=Mirage(inactive_bound="cap"), models=(TinyModel(n_base_blocks=5), TinyModel()))
    arrivals = [arrival(request_id, n_prompt=6, n_output=9) for request_id in range(3)]
    outcome, auditor = serve_refusing(setup, arrivals, refused_share=1)
    assert outcome is Outcome.DONE
    wanted = [each for each in auditor.recorder.decisions if each.decision.reason is Reason.LEND_INACTIVE]
    assert wanted
    assert all(each.refused and not each.changed for each in wanted)
    _, without = serve(replace(setup, policy=Recompute()), arrivals)
    assert (auditor.recorder.requests, auditor.recorder.steps) == (without.requests, without.steps)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, ValidationError

from conf.editable import CLASSES, editable, frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"spare.share={self.share} is outside [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    n_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    quantum_s: float
    order: Literal["fifo", "lifo"] = "fifo"
    tie: Literal["low", "high"] | None = None
    priorities: tuple[int | None, ...] = ()
    weights: Sequence[float] | None = None
    spare: Spare
    named: Mapping[str, Wait]
    kinds: Mapping[str, object] = field(metadata={CLASSES: {"spare": Spare, "wait": Wait}})


GIVEN: dict[str, Any] = {"quantum_s": 0.5, "named": {}, "kinds": {"wait": {"n_steps": 3}}}


def filled(changes: Mapping[str, object]) -> Sharing:
    cfg = OmegaConf.merge(OmegaConf.structured(editable(Sharing)), GIVEN, changes)
    return frozen(Sharing, OmegaConf.to_object(cfg))


def test_a_default_of_the_settings_is_the_default_of_their_twin() -> None:
    assert filled({}) == Sharing(
        quantum_s=0.5, spare=Spare(), named={}, kinds={"spare": Spare(), "wait": Wait(n_steps=3)}
    )


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "quantum_s": st.floats(0, 1),
            "order": st.sampled_from(["fifo", "lifo"]),
            "tie": st.sampled_from(["low", "high", None]),
            "priorities": st.lists(st.none() | st.integers(0, 9), max_size=3).map(tuple),
            "weights": st.none() | st.lists(st.floats(0, 1), max_size=3).map(tuple),
        },
    )
)
def test_what_is_given_comes_back_as_the_frozen_value(changes: dict[str, Any]) -> None:
    sharing = filled(changes)
    assert {name: getattr(sharing, name) for name in changes} == changes


def default_share(twin: type) -> float:
    return OmegaConf.structured(twin).spare.share


def test_a_twin_can_be_filled_in_another_process() -> None:
    joblib: Any = import_module("joblib")  # as Hydra's launchers do it
    shares = joblib.Parallel(n_jobs=2)([joblib.delayed(default_share)(editable(Sharing))] * 2)
    assert shares == [0.1, 0.1]


def test_groups_and_mappings_are_filled_by_key() -> None:
    sharing = filled({"spare": {"share": 0.2}, "named": {"a": {"n_steps": 1}}, "kinds": {"spare": {"share": 0.3}}})
    assert sharing.spare == Spare(share=0.2)
    assert sharing.named == {"a": Wait(n_steps=1)}
    assert sharing.kinds["spare"] == Spare(share=0.3)


def test_a_value_without_default_must_be_given() -> None:
    with pytest.raises(MissingMandatoryValue, match=r"named\.a\.n_steps"):
        filled({"named": {"a": {}}})


@pytest.mark.parametrize("changes", [{"order": "random"}, {"quantum_s": "long"}, {"quantum_s": None}])
def test_a_value_of_another_type_or_outside_the_choices_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        filled(changes)


def test_the_settings_check_their_own_range() -> None:
    with pytest.raises(ValueError, match=r"spare\.share=2\.0 is outside"):
        filled({"spare": {"share": 2}})

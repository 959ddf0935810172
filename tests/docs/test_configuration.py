from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import pytest

from conf.cli import Refused
from conf.described import as_yaml, settings_of
from conf.list_policies import main as list_policies
from conf.reference import reference
from conf.schema import Settings
from policies.registry import POLICIES
from tests.conf.test_build import composed
from tests.conftest import REPOSITORY


def keys_in(config: object, path: str = "") -> set[str]:
    """Every dotted key of a composed configuration."""
    if not isinstance(config, dict) or not config:
        return {path}
    items = cast("dict[str, Any]", config).items()
    return {key for name, value in items for key in keys_in(value, f"{path}.{name}" if path else name)}


def test_the_reference_is_that_of_the_schema() -> None:
    written = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == reference(), "python -m sim settings > docs/configuration.md"


def test_every_key_of_a_configuration_is_in_the_reference() -> None:
    from omegaconf import OmegaConf

    text = reference()
    config = OmegaConf.to_container(composed("+experiment=demo"), enum_to_str=True)
    by_name = ("mix.models.", "lengths.", "variants.")
    for key in keys_in(config):
        group = next((group for group in by_name if key.startswith(group)), None)
        shown = key if group is None else f"{group}NAME.{key.removeprefix(group).partition('.')[2]}"
        parents = [
            shown.removesuffix(".").rsplit(".", n)[0] for n in (0, 1, 2)
        ]  # a mapping that takes any keys is a row
        assert f"\n## {shown}\n" in text or any(f"`{parent}`" in text for parent in parents), key


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_listed_with_each_of_its_settings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_policies([name]) == 0
    told = capsys.readouterr().out
    assert told.startswith(name)
    for item in fields(cast(Any, POLICIES[name])):
        assert f"  {item.name}=" in told


def test_a_policy_that_is_none_is_a_mistake() -> None:
    with pytest.raises(Refused, match="no policy nothing; there are recompute"):
        list_policies(["nothing"])


def test_a_default_is_what_the_class_takes_without_a_value() -> None:
    for cls in POLICIES.values():
        made = cls()
        for setting in settings_of(cls):
            assert setting.default == as_yaml(getattr(made, setting.name))


def test_the_settings_of_an_experiment_have_meanings_from_their_docstring() -> None:
    told = {setting.name: setting.meaning for setting in settings_of(Settings)}
    assert told["compare"] == "names of policies and variants, the baseline first."
    assert told["rates_by_lengths"].endswith("short requests saturate a GPU later.")

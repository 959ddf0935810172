from __future__ import annotations

from dataclasses import fields
from importlib.resources import files
from typing import cast

import pytest
from omegaconf import OmegaConf

from traces.workload.lengths import LengthSettings
from traces.workload.sources import ArrivalSettings


@pytest.mark.parametrize(
    ("group", "kind", "filled"),
    [
        ("arrivals", ArrivalSettings, {"path": "trace.csv", "rate": 1.0, "cv": 2.0}),
        ("lengths", LengthSettings, {"n_prompt_tokens": 1, "n_output_tokens": 1, "path": "rows.json"}),
    ],
)
def test_every_yaml_names_existing_settings_and_leaves_open_only_what_has_no_default(
    group: str, kind: type[ArrivalSettings | LengthSettings], filled: dict[str, object]
) -> None:
    choices = [file for file in (files("conf") / group).iterdir() if file.name.endswith(".yaml")]
    assert len(choices) >= 3
    for choice in choices:
        config = OmegaConf.create(choice.read_text())
        for key in OmegaConf.missing_keys(config):
            OmegaConf.update(config, key, filled[key])
        values = cast("dict[str, object]", OmegaConf.to_container(config))
        assert set(values) <= {field.name for field in fields(kind)}
        kind(**values)  # pyright: ignore[reportArgumentType]

"""The longest request that a model takes: of the catalogue, or of a Hugging Face ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from traces.hf.config import read_config

CATALOGUE = Path(__file__).parents[2] / "conf" / "model"
"""Data of the package beside this one; no code of it is used."""

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Of a config; any architecture's will do here."""


def context_tokens(model: str) -> int:
    """Find how many tokens prompt and output of a request may have together.

    Args:
        model: a name in the catalogue, or the path of a ``config.json`` or of its folder.

    Raises:
        ValueError: there is no such model or file, or it does not say.
    """
    for path in (CATALOGUE / f"{model}.yaml", CATALOGUE / "moe" / f"{model}.yaml"):
        if Path(model).name == model and path.is_file():
            values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
            return int(values["max_context_tokens"])
    if not (Path(model).exists() or model.endswith(".json")):
        known = sorted(file.stem for file in CATALOGUE.rglob("*.yaml"))
        raise ValueError(f"no model {model}; choose one of {', '.join(known)}, or a config.json")
    config = read_config(Path(model))
    for key in CONTEXT_KEYS:
        if config.values.get(key) is not None:
            return config.count(key)
    raise ValueError(f"{config.path} has none of {', '.join(CONTEXT_KEYS)}; give --context TOKENS")

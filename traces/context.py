"""The longest request that a model takes: of the catalogue, or of a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import yaml

CATALOGUE = Path(__file__).parents[1] / "conf" / "model"
"""Data of the package beside this one; no code of it is used."""

CONTEXT_KEYS = ("max_context_tokens", "max_position_embeddings", "n_positions", "max_seq_len")


def context_tokens(model: str) -> int:
    """Find how many tokens prompt and output of a request may have together.

    Args:
        model: a name in the catalogue, or the path of a ``config.json``.

    Raises:
        ValueError: there is no such model or file, or it does not say.
    """
    path = Path(model) if model.endswith(".json") else CATALOGUE / f"{model}.yaml"
    known = sorted(file.stem for file in CATALOGUE.glob("*.yaml"))
    if Path(model).name != model and not model.endswith(".json"):
        raise ValueError(f"--model {model} is no name; choose one of {', '.join(known)}, or a config.json")
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if model.endswith(".json") else yaml.safe_load(text)
    except FileNotFoundError:
        raise ValueError(f"no model {model}; choose one of {', '.join(known)}, or a config.json") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read ({str(error).splitlines()[0]}); name another model") from None
    for key in CONTEXT_KEYS:
        if isinstance(found, dict) and isinstance(found.get(key), int):  # pyright: ignore[reportUnknownMemberType]
            return cast("dict[str, int]", found)[key]
    raise ValueError(f"{path} has none of {', '.join(CONTEXT_KEYS)}; give --context TOKENS")

"""Models by name: of the catalogue, or from a Hugging Face ``config.json``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from policies.even_layers import even_layers
from policies.moe import DeltaNet, MoeShape
from policies.types import ModelShape
from traces.hf.model import HfModel, model_of

CATALOGUE = Path(__file__).parent / "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A model that was asked for.

    Attributes:
        key: what to call it in a mix.
        moe: of a mixture of experts, its kinds of layers apart.
        derived: how it follows from a ``config.json``; ``None``: it is of the catalogue.
    """

    key: str
    shape: ModelShape
    moe: MoeShape | None = None
    derived: HfModel | None = None


def catalogue() -> list[str]:
    """The names in the catalogue, dense models first."""
    return [path.stem for folder in (CATALOGUE, CATALOGUE / "moe") for path in sorted(folder.glob("*.yaml"))]


def named(model: str) -> Named:
    """Find a model.

    Args:
        model: a name in the catalogue, or the path of a ``config.json`` or of its folder.

    Raises:
        ValueError: there is none, or its config cannot be used.
    """
    if (path := CATALOGUE / f"{model}.yaml").is_file() and Path(model).name == model:
        return Named(key=model, shape=ModelShape(**_values(path)))
    if (path := CATALOGUE / "moe" / f"{model}.yaml").is_file() and Path(model).name == model:
        moe = _moe(_values(path))
        return Named(key=model, shape=even_layers(moe), moe=moe)
    if Path(model).exists() or "/" in model or model.endswith(".json"):
        derived = model_of(Path(model))
        return Named(key=_key(derived.shape.name), shape=derived.shape, moe=derived.moe, derived=derived)
    close = get_close_matches(model, catalogue(), n=1)
    there = f"did you mean {close[0]}?" if close else f"there are {', '.join(catalogue())}"
    raise ValueError(f"no model {model} in the catalogue and no such file; {there}")


def _values(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _moe(values: dict[str, Any]) -> MoeShape:
    if "delta_net" in values:
        values["delta_net"] = DeltaNet(**values["delta_net"])
    return MoeShape(**values)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "model"

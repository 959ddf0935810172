"""Reads a Hugging Face ``config.json``: which architecture it is of, and what it says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

FILE = "config.json"

SAME = {"num_experts": ("num_local_experts", "n_routed_experts")}
"""Keys that have several names: each class of transformers has one of its own, and version 5 writes another."""


@dataclass(frozen=True, slots=True)
class HfConfig:
    """What a ``config.json`` says of the language model in it.

    Attributes:
        path: the file, for messages.
        values: its keys; of a model of several kinds of input those of ``text_config``.
    """

    path: Path
    values: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The architecture, in Hugging Face's word."""
        return str(self.values.get("model_type", ""))

    @property
    def name(self) -> str:
        """What to call the model: the last part of the name it was published under, else of its folder."""
        published = str(self.values.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
        folder = self.path.resolve().parent.name if self.path.name == FILE else self.path.stem
        return published or folder

    def require(self, keys: Iterable[str]) -> None:
        """Refuse a file that lacks any of these keys.

        Raises:
            ValueError: with all that it lacks.
        """
        if missing := [key for key in keys if self.values.get(key) is None]:
            raise ValueError(f"{self.path}: {self.model_type} needs {', '.join(missing)}, which the file does not give")

    def count(self, key: str, default: int | None = None) -> int:
        """Read a whole number of 1 or more.

        Raises:
            ValueError: it is missing without a default, or no such number.
        """
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.path}: {key}={value} must be a whole number of 1 or more")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Read a truth value; ``null`` is the default."""
        value = self.values.get(key)
        return default if value is None else bool(value)

    def listed(self, key: str) -> list[Any]:
        """Read a list; an empty one where there is none."""
        value = self.values.get(key)
        return cast("list[Any]", value) if isinstance(value, list) else []


def read_config(path: Path) -> HfConfig:
    """Read a ``config.json``, named itself or by its folder.

    Raises:
        ValueError: there is none, or it is not one.
    """
    file = path / FILE if path.is_dir() else path
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no file {file}; give a Hugging Face config.json or its folder") from None
    except (OSError, ValueError) as error:  # a JSON error and a decoding error are ValueErrors
        reason = str(error).splitlines()[0]
        raise ValueError(f"{file} is no JSON ({reason}); give a Hugging Face config.json") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds no JSON object; give a Hugging Face config.json")
    outer = cast("dict[str, Any]", values)
    if isinstance(outer.get("text_config"), dict):
        inner = cast("dict[str, Any]", outer["text_config"])
        outer = {**{key: outer[key] for key in ("_name_or_path", "quantization_config") if key in outer}, **inner}
    return HfConfig(file, _under_one_name(outer))


def _under_one_name(values: Mapping[str, Any]) -> dict[str, Any]:
    named = dict(values)
    for key, others in SAME.items():
        for other in others:
            if named.get(key) is None and named.get(other) is not None:
                named[key] = named[other]
    return named

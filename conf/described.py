"""Settings in words: what the docstring of their class says of each, with its type and its default."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*)$")
_WORDS: Mapping[object, str] = {int: "whole number", float: "number", str: "text", bool: "true or false", object: "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        default: as YAML has it; ``None``: there is none, it must be given.
        meaning: of its class's docstring; empty if it says nothing of it.
        group: its class, if it is a group of settings.
    """

    name: str
    kind: str
    default: str | None
    meaning: str
    group: type | None = None


def summary(cls: type) -> str:
    """The first sentence of a class's docstring."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def settings_of(cls: type) -> Iterator[Setting]:
    """Describe every field of a settings class, in order."""
    hints, meanings = get_type_hints(cls), _meanings(cls)
    for of in fields(cast(Any, cls)):
        hint = hints[of.name]
        default = None
        if of.default is not MISSING:
            default = as_yaml(of.default)
        elif of.default_factory is not MISSING:
            default = as_yaml(of.default_factory())
        yield Setting(
            name=of.name,
            kind=in_words(hint),
            default=default,
            meaning=meanings.get(of.name, ""),
            group=hint if isinstance(hint, type) and is_dataclass(hint) else None,
        )


def in_words(hint: Any) -> str:
    """Say what values a field takes."""
    match get_origin(hint), get_args(hint):
        case (origin, choices) if origin is Literal:
            return " or ".join(f"`{choice}`" for choice in choices)
        case (origin, (item, *_)) if origin in (tuple, Sequence):
            return f"list of {in_words(item)}"
        case (origin, (_, value)) if origin is Mapping:
            return f"{in_words(value)} by name"
        case (origin, (kind, _)) if origin in (Union, UnionType):
            return f"{in_words(kind)}, or null"
        case _ if is_dataclass(hint):
            return "group"
        case _:
            return _WORDS.get(hint, str(getattr(hint, "__name__", hint)))


def as_yaml(value: object) -> str:
    """Write a default as YAML has it, on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            items = cast("Mapping[str, object]", value).items()
            return "{" + ", ".join(f"{key}: {as_yaml(each)}" for key, each in items) + "}"
        case tuple() | list():
            return "[" + ", ".join(as_yaml(each) for each in cast("Sequence[object]", value)) + "]"
        case _:
            return str(value)


def _meanings(cls: type) -> dict[str, str]:
    """What the ``Attributes`` of a docstring say of each field."""
    found: dict[str, str] = {}
    names: list[str] = []
    _, _, attributes = inspect.cleandoc(cls.__doc__ or "").partition("\nAttributes:\n")
    for line in attributes.split("\n"):
        entry = _ENTRY.match(line)
        if entry is not None:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith("        ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break
    return found

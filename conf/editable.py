"""Settings as OmegaConf can fill them: the twin of a frozen dataclass, and the way back.

Settings are written once, as the frozen values that the program uses. OmegaConf 2.3 makes
frozen dataclasses read-only, knows no ``Literal`` and no tuple, so it is given a twin::

    @dataclass(frozen=True)                    @dataclass
    class Sharing:                             class Sharing:
        order: Literal["fifo", "lifo"]             order: Enum with the names fifo and lifo
        shares: tuple[float, ...] = ()             shares: list[float] = []

A field without a default is missing in the twin until YAML or the command line gives it.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

# Launchers hand twins to other processes, where "no default" has to be the one that dataclasses compare with.
copyreg.pickle(type(NO_DEFAULT), lambda _: "MISSING")

MISSING = "???"
"""OmegaConf's word for a value that nobody has given. Not imported: processes that only run need no OmegaConf."""

CLASSES = "classes"
"""Metadata of a field that is a mapping with fixed keys: for each key its own settings class."""


@cache
def editable(cls: type) -> type:
    """Derive the twin of a settings class."""
    hints = _hints(cls)
    return _bare(cls.__name__, [(of.name, *_twin_field(hints[of.name], of)) for of in _fields(cls)])


def frozen(cls: type[T], filled: object) -> T:
    """Turn a filled twin of ``cls`` into a ``cls``, which checks its values.

    Raises:
        ValueError: a value is outside its range.
    """
    hints = _hints(cls)
    return cls(**{of.name: _frozen_field(hints[of.name], of, getattr(filled, of.name)) for of in _fields(cls)})


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cast(Any, cls))


def _twin_field(hint: Any, of: Field[Any]) -> tuple[Any, Any]:
    """Type and default of one field of the twin."""
    twin = _twin_group(of.name, of.metadata[CLASSES]) if CLASSES in of.metadata else _twin_type(hint)
    if of.default_factory is not NO_DEFAULT:
        return twin, field(default_factory=twin if of.default_factory is hint else of.default_factory)
    if of.default is not NO_DEFAULT:
        return twin, field(default=of.default)
    return twin, _without_default(twin)


def _without_default(twin: Any) -> Any:
    """A group of settings is there, and in it each value is missing; another field is missing itself."""
    return field(default_factory=twin) if _is_group(twin) else field(default=MISSING)


def _twin_group(name: str, classes: Mapping[str, type]) -> type:
    twins = {key: editable(cls) for key, cls in classes.items()}
    return _bare(name, [(key, twin, field(default_factory=twin)) for key, twin in twins.items()])


def _bare(name: str, typed: Sequence[tuple[str, Any, Any]]) -> type:
    """A dataclass with a constructor and no more: making the other methods takes most of the time."""
    return make_dataclass(name, typed, repr=False, eq=False, match_args=False)


def _twin_type(hint: Any) -> Any:
    match get_origin(hint), get_args(hint):
        case (origin, choices) if origin is Literal:
            return Enum("Choice", {choice: choice for choice in choices})
        case (origin, (item, *_)) if origin in (tuple, Sequence):
            return list[_twin_type(item)]
        case (origin, (_, value)) if origin is Mapping:
            return dict[str, _twin_type(value)]
        case (origin, (kind, _)) if origin in (Union, UnionType):  # with None
            return _twin_type(kind) | None
        case _ if _is_group(hint):
            return editable(hint)
        case _:
            return Any if hint is object else hint


def _is_group(hint: Any) -> bool:
    return is_dataclass(hint)


def _frozen_field(hint: Any, of: Field[Any], value: Any) -> Any:
    if CLASSES in of.metadata:
        return {key: frozen(cls, getattr(value, key)) for key, cls in of.metadata[CLASSES].items()}
    return _frozen_value(hint, value)


def _frozen_value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    match get_origin(hint), get_args(hint):
        case (origin, _) if origin is Literal:
            return value.value
        case (origin, (item, *_)) if origin in (tuple, Sequence):
            return tuple(_frozen_value(item, each) for each in value)
        case (origin, (_, kind)) if origin is Mapping:
            return {key: _frozen_value(kind, each) for key, each in value.items()}
        case (origin, (kind, _)) if origin in (Union, UnionType):
            return _frozen_value(kind, value)
        case _ if _is_group(hint):
            return frozen(hint, value)
        case _:
            return value

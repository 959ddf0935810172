"""Checks that settings share: a choice that does not exist, or a setting that would do nothing, stops the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        ValueError: with the choices.
    """
    if value not in (known := tuple(choices)):
        raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(known)}")


def require_positive(name: str, value: float | None, unit: str) -> None:
    """Refuse a number that is given and not a positive finite one.

    Raises:
        ValueError: with the value and its unit.
    """
    if value is not None and not (isfinite(value) and value > 0):
        raise ValueError(f"{name}={value} {unit} must be a finite number above 0")


def refuse_unused(group: str, settings: DataclassInstance, choice: str, used: Iterable[str]) -> None:
    """Refuse a setting that differs from its default although ``choice`` does not read it.

    Raises:
        ValueError: with the setting; mend by removing it.
    """
    chosen = getattr(settings, choice)
    readable = {choice, *used}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name not in readable and field.default is not MISSING and value != field.default:
            raise ValueError(
                f"{group}.{field.name}={value} has no effect with {group}.{choice}={chosen}; "
                f"set {group}.{field.name}={'null' if field.default is None else field.default}"
            )

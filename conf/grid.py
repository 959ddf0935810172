"""A grid: every combination of the values that some settings are to take.

Keys are dotted or nested, values are lists, so that these are the same::

    grid:                                               grid:
      policy.mirage.max_remapped_fraction: [0.1, 0.2]     policy: {mirage: {max_remapped_fraction: [0.1, 0.2]}}
      seed: [0, 1, 2]                                     seed: [0, 1, 2]

and, on the command line, ``+grid.policy.mirage.max_remapped_fraction=[0.1,0.2] +grid.seed=[0,1,2]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import cast

Point = Mapping[str, object]
"""One value for each dotted key."""

ONCE = frozenset(
    {
        "compare", "figure", "grid", "loads", "name", "output", "parallel", "points", "rates", "rates_by_lengths",
        "saturations", "variants",
    }
)  # fmt: skip
"""Keys that say which runs there are, where, and how many at a time: a run comes out the same under any of them."""


def axes(grid: Mapping[str, object]) -> dict[str, list[object]]:
    """List the values that each dotted key is to take.

    Raises:
        ValueError: a key cannot vary or is there twice, or its values are not a list of different numbers,
            words or truth values.
    """
    found: dict[str, list[object]] = {}
    for key, values in _leaves(grid):
        if key in found:
            raise ValueError(f"grid.{key} is there twice, dotted and nested; join the two lists")
        found[key] = _checked(key, values)
    return found


def points(grid: Mapping[str, object]) -> list[Point]:
    """Combine the values, those of the last key fastest; without a grid there is one empty point.

    Raises:
        ValueError: as ``axes``.
    """
    along = axes(grid)
    return [dict(zip(along, values, strict=True)) for values in product(*along.values())]


def _leaves(grid: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    for key, values in grid.items():
        if isinstance(values, Mapping):
            yield from _leaves(cast("Mapping[str, object]", values), f"{path}{key}.")
        else:
            yield f"{path}{key}", values


def _checked(key: str, values: object) -> list[object]:
    group = key.partition(".")[0]
    if group in ONCE:
        raise ValueError(f"grid.{key}: an experiment has one {group}; vary other keys")
    if not isinstance(values, list):
        raise ValueError(f"grid.{key}={values} must be a list; write [{values}]")
    found = cast("list[object]", values)
    if not found:
        raise ValueError(f"grid.{key} is empty; give values, or leave it out")
    for value in found:
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"grid.{key}: {value} must be a number, a word, true, false or null")
    if len(set(found)) < len(found):
        raise ValueError(f"grid.{key}={found} has a value twice; leave one out")
    return found

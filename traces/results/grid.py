"""What tells runs of one system apart: the settings in which their configurations differ.

Settings below ``policy`` are the system's own and become part of its name. All others (of the machine, the
models, the requests, the server) become part of the workload's name: systems are compared where they agree.
Mix, lengths, rate and seed have a place of their own in ``RunInfo``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from traces.results.folder import RunInfo

Scalar = str | int | float | bool | None

Grid = Mapping[str, Scalar]
"""Values by dotted key of the configuration."""

_OWN_PLACE = ("seed", "arrivals.rate")


def differences(infos: Sequence[RunInfo]) -> list[Grid]:
    """Find for each run the settings in which runs of its mix and system differ.

    A group that is chosen by name, such as a machine, differs by that name alone.
    """
    configs = [dict(_leaves(info.config)) for info in infos]
    seen: dict[tuple[str, str], dict[str, set[Scalar]]] = {}
    for info, config in zip(infos, configs, strict=True):
        values = seen.setdefault((info.mix, info.system), {})
        for key, value in config.items():
            values.setdefault(key, set()).add(value)
    telling = {which: _telling(values) for which, values in seen.items()}
    return [
        {key: config[key] for key in telling[info.mix, info.system] if key in config}
        for info, config in zip(infos, configs, strict=True)
    ]


def of_system(grid: Grid) -> Grid:
    """Take the settings that belong to the system."""
    return {key: value for key, value in grid.items() if key.startswith("policy.")}


def of_workload(grid: Grid) -> Grid:
    """Take the settings that belong to the workload."""
    return {key: value for key, value in grid.items() if not key.startswith("policy.")}


def named(name: str, grid: Grid) -> str:
    """Put the values behind a name, each under its shortest clear key: ``sharegpt quantum_s=0.02``."""
    return " ".join([name, *(f"{short}={_word(grid[key])}" for key, short in short_keys(grid).items())])


def short_keys(keys: Collection[str]) -> dict[str, str]:
    """Find for each dotted key its shortest tail that no other key has; ``hardware`` for ``hardware.name``."""
    paths = {key: key.removesuffix(".name").split(".") for key in keys}

    def is_clear(tail: list[str]) -> bool:
        return sum(path[-len(tail) :] == tail for path in paths.values()) == 1

    def shortest(path: list[str]) -> list[str]:
        tails = (path[-n:] for n in range(1, len(path) + 1))
        return next(filter(is_clear, tails), path)

    return {key: ".".join(shortest(path)) for key, path in paths.items()}


def _telling(values: Mapping[str, Collection[Scalar]]) -> list[str]:
    """The keys that have several values, less what a group's name says already."""
    several = [key for key, seen in values.items() if len(seen) > 1 and key not in _OWN_PLACE]
    named_groups = [key.removesuffix("name") for key in several if key.endswith(".name")]
    return [
        key for key in several if not any(key.startswith(group) and key != f"{group}name" for group in named_groups)
    ]


def _leaves(config: object, path: str = "") -> Iterator[tuple[str, Scalar]]:
    """(dotted key, value) of everything below; a list counts as one value."""
    if isinstance(config, Mapping):
        for key, value in cast("Mapping[str, object]", config).items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(config, Sequence) and not isinstance(config, str):
        yield path, _word(list(cast("Sequence[object]", config)))
    else:
        yield path, cast("Scalar", config)


def _word(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case _:
            return str(value).replace(" ", "")

"""``python -m sim settings``: the reference of every setting, as ``docs/configuration.md`` has it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any, cast, get_args, get_type_hints

from conf.described import Setting, as_yaml, settings_of, summary
from conf.editable import CLASSES
from conf.schema import Settings

HEAD = """\
# Configuration

Every setting, from the schema itself; `python -m sim settings > docs/configuration.md` writes this file, and a test
holds it to that. `KEY=VALUE` on the command line sets one, `python -m sim run --cfg job` shows what is in force, and a
misspelt key or a value out of range is refused before anything runs. *Default* is what a run has without an experiment:
of `conf/config.yaml` and of the files that it chooses; a dash means that a chosen file gives the value.
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``settings``."""
    ArgumentParser(description="Every setting with type, default and meaning, as Markdown.").parse_args(arguments)
    print(reference(), end="")
    return 0


def reference() -> str:
    """Write the reference."""
    values = _defaults()
    hints = get_type_hints(Settings)
    own: list[Setting] = []
    groups: list[str] = []
    for setting, of in zip(settings_of(Settings), Settings.__dataclass_fields__.values(), strict=True):
        classes = cast("Mapping[str, type] | None", of.metadata.get(CLASSES))
        inner = setting.group or _class_by_name(hints[setting.name])
        if classes is not None:
            groups += [part for name, cls in classes.items() for part in _group(f"{setting.name}.{name}", cls, values)]
        elif setting.group is not None:
            groups += _group(setting.name, setting.group, values)
        elif inner is not None:
            own.append(setting)
            groups += _group(f"{setting.name}.NAME", inner, values)
        else:
            own.append(setting)
    return "\n".join([HEAD, "## An experiment\n", *_table("", own, values), *groups]) + "\n"


def _group(path: str, cls: type, values: Mapping[str, object]) -> Iterator[str]:
    """A heading, what the group is, its choices, its settings, then the groups in it."""
    settings = list(settings_of(cls))
    yield f"\n## {path}\n"
    yield summary(cls).replace("``", "`") + "\n"
    choices = _choices(path.split(".")[0]) if "." not in path or path.endswith(".NAME") else []
    if choices:
        yield f"Choices, `{path.split('.')[0]}=NAME`: {', '.join(f'`{name}`' for name in choices)}.\n"
    plain = [each for each in settings if each.group is None]
    if plain:
        yield from _table(f"{path}.", plain, values)
    for each in settings:
        inner = each.group or _class_by_name(get_type_hints(cls)[each.name])
        if inner is not None:
            name = f"{path}.{each.name}" if each.group else f"{path}.{each.name}.NAME"
            yield from _group(name, inner, values)


def _table(prefix: str, settings: Sequence[Setting], values: Mapping[str, object]) -> Iterator[str]:
    yield "| key | value | default | meaning |\n| --- | --- | --- | --- |"
    for setting in settings:
        default = _default(f"{prefix}{setting.name}", setting, values)
        meaning = setting.meaning.replace("``", "`")
        cells = (f"`{prefix}{setting.name}`", setting.kind, default, meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: str, setting: Setting, values: Mapping[str, object]) -> str:
    try:
        found = _at(values, key.split("."))
    except KeyError:
        return "-" if setting.default is None else f"`{setting.default}`"
    if found == "???":
        return "must be given"
    return f"`{as_yaml(found)}`" if not isinstance(found, Mapping) else "-"


def _at(values: Mapping[str, object], path: Sequence[str]) -> object:
    """The value at a dotted key.

    Raises:
        KeyError: it is not there.
    """
    first, *rest = path
    found = values[first]
    if not rest:
        return found
    if not isinstance(found, Mapping):
        raise KeyError(path)
    return _at(cast("Mapping[str, object]", found), rest)


def _class_by_name(hint: Any) -> type | None:
    """The class of a mapping's values, if they are groups of settings."""
    values = [each for each in get_args(hint) if hasattr(each, "__dataclass_fields__")]
    return values[0] if values else None


def _choices(group: str) -> list[str]:
    folder = files("conf") / group
    if not folder.is_dir():
        return []
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _defaults() -> Mapping[str, object]:
    """The configuration of a run without an experiment, with nothing worked out."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    import_module("conf.app")  # stores the schema
    with initialize_config_module("conf", version_base="1.3"):
        composed = compose("config")
    return cast("Mapping[str, object]", OmegaConf.to_container(composed, enum_to_str=True))

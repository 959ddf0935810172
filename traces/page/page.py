"""One HTML file that tells what runs have come to: it needs no other file, no network and no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import cast

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from traces.claims import Claim, Result
from traces.page.cautions import cautions
from traces.page.cells import CAUSES, COLUMNS, DEFINITIONS, Row, answers, by_model, by_system, causes, causes_in_words
from traces.page.figures import MOST_POINTS, Figure, against, hbm_figure, latency_figures, live_requests
from traces.page.log import Log, log_of
from traces.plots.hbm import OWNERS, REST
from traces.plots.style import Line, lines
from traces.plots.sweep import along_rate, along_setting, numeric_keys, rows_of
from traces.report import claims_beside_ours
from traces.results.folder import RunInfo, RunTables, read_json

MOST_IN_DETAIL = 24
"""Runs of which a page shows figures and decisions; of more the first, so that it stays below 3 MB."""

DASHES: Mapping[str, str] = {"-": "", "--": "5 2", "-.": "6 2 1.5 2", ":": "1.5 2"}
"""As SVG writes them, of the dashes that ``traces.plots.style`` gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One run in detail."""

    name: str
    hbm: Figure | None
    log: Log | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Systems under one workload.

    Attributes:
        key: of this workload alone on its page.
        title: mix, lengths, rate.
        runs: in detail, the first seed of each system.
    """

    key: str
    title: str
    answers: Sequence[str]
    systems: Sequence[Row]
    models: Sequence[Row]
    causes: Sequence[Row]
    figures: Sequence[Figure] = ()
    runs: Sequence[Told] = field(default_factory=list[Told])


def write_page(runs: Sequence[tuple[Result, RunTables]], path: Path, *, claims: Sequence[Claim] = ()) -> None:
    """Write the page of these runs.

    Args:
        runs: the systems in the order in which they are listed; the first is what the others are compared with.
        claims: of papers, beside which ours are put.
    """
    path.write_text(page(runs, claims=claims), encoding="utf-8")


def page(runs: Sequence[tuple[Result, RunTables]], *, claims: Sequence[Claim] = ()) -> str:
    """Make the page: see ``write_page``."""
    results = [result for result, _ in runs]
    systems = lines([result.info.label for result in results])
    template = _environment().get_template("page.html.jinja")
    info = results[0].info
    return template.render(
        title=f"{info.mix}: {', '.join(dict.fromkeys(result.info.label for result in results))}",
        facts=_facts(runs),
        workloads=list(_workloads(runs, systems)),
        against=list(_against(results)),
        cautions=cautions(runs),
        columns=COLUMNS,
        cause_names=CAUSES,
        causes_in_words=causes_in_words(),
        definitions=DEFINITIONS,
        systems=systems,
        dashes=DASHES,
        owners=[*OWNERS, REST],
        claims=claims_beside_ours(claims, results),
        config=yaml.safe_dump(_plain(info), sort_keys=False, allow_unicode=True),
        differences=list(_differences([result.info for result in results])),
        most_points=MOST_POINTS,
        n_untold=max(0, len(list(chain(*_first_seeds(runs).values()))) - MOST_IN_DETAIL),
    )


def _environment() -> Environment:
    loader = PackageLoader("traces.page", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _facts(runs: Sequence[tuple[Result, RunTables]]) -> dict[str, str]:
    """What ran, where and on which code, of the first run."""
    info, header = runs[0][0].info, read_json(runs[0][1].folder / "run.json")
    seeds = sorted({result.info.seed for result, _ in runs})
    versions = cast("Mapping[str, str]", header.get("versions", {}))
    return {
        "Device": info.device or "unknown",
        "Models": ", ".join(model.name for model in info.models),
        "Runs": f"{len(runs)}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        "Started": str(header.get("started", "unknown")),
        "Code": str(header.get("commit") or "no commit"),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _groups(results: Sequence[Result]) -> dict[tuple[str, str, str], dict[str, list[Result]]]:
    """For each mix, workload and rate the runs of each system, in order of appearance."""
    found: dict[tuple[str, str, str], dict[str, list[Result]]] = {}
    for result in results:
        info = result.info
        found.setdefault((info.mix, info.workload, info.rate), {}).setdefault(info.label, []).append(result)
    return found


def _first_seeds(runs: Sequence[tuple[Result, RunTables]]) -> dict[tuple[str, str, str], list[RunTables]]:
    """For each mix, workload and rate the first run of each system, named as it is in this comparison."""
    found: dict[tuple[str, str, str], dict[str, RunTables]] = {}
    for result, tables in runs:
        info = result.info
        named = RunTables(folder=tables.folder, info=info, state=tables.state, reason=tables.reason, kept=tables.kept)
        found.setdefault((info.mix, info.workload, info.rate), {}).setdefault(info.label, named)
    return {key: list(systems.values()) for key, systems in found.items()}


def _workloads(runs: Sequence[tuple[Result, RunTables]], systems: Mapping[str, Line]) -> Iterator[Workload]:
    firsts, n_left = _first_seeds(runs), MOST_IN_DETAIL
    for index, (which, group) in enumerate(_groups([result for result, _ in runs]).items()):
        key = f"w{index}"
        tables = firsts[which]
        is_told = n_left >= len(tables)
        n_left -= len(tables) if is_told else 0
        n_seeds = max(map(len, group.values()))
        yield Workload(
            key=key,
            title=", ".join(which) + (f", mean of {n_seeds} seeds" if n_seeds > 1 else ""),
            answers=list(answers(group)),
            systems=by_system(group),
            models=by_model(group),
            causes=causes(group),
            figures=_figures(tables, systems, key) if is_told else (),
            runs=[_told(each, f"{key}r{n}") for n, each in enumerate(tables)] if is_told else (),
        )


def _figures(tables: Sequence[RunTables], systems: Mapping[str, Line], key: str) -> list[Figure]:
    return [*latency_figures(tables, systems, key), live_requests(tables, systems, key)]


def _told(tables: RunTables, key: str) -> Told:
    has_memory = tables.memory is not None and len(tables.memory) > 0
    return Told(
        name=tables.info.label,
        hbm=hbm_figure(tables, key) if has_memory else None,
        log=log_of(tables) if "decisions" in tables.kept else None,
    )


def _against(results: Sequence[Result]) -> Iterator[tuple[str, Mapping[str, Line], list[Figure]]]:
    """Figures against what varies: the one number of the grid, else the rate; none if neither does."""
    keys = numeric_keys(results)
    if len(keys) != 1 and len({result.info.rate_per_s for result in results}) < 2:
        return
    axis = along_setting(keys[0]) if len(keys) == 1 else along_rate()
    systems = lines([axis.line(result.info) for result in results])
    for index, ((mix, row), group) in enumerate(rows_of(results, axis).items()):
        yield f"{mix}, {row}", systems, list(against(group, axis, systems, f"a{index}"))


def _plain(info: RunInfo) -> dict[str, object]:
    return dict(info.config)


def _differences(infos: Sequence[RunInfo]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """For each run but the first, the settings in which it differs from the first."""
    base = dict(_leaves(infos[0].config))
    for info in infos[1:]:
        own = dict(_leaves(info.config))
        changed = {key: own.get(key, "-") for key in [*base, *own] if own.get(key) != base.get(key)}
        if changed:
            yield f"{info.label} ({info.workload}, {info.rate}, seed {info.seed})", changed


def _leaves(config: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(config, Mapping):
        for key, value in cast("Mapping[str, object]", config).items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    else:
        yield path, str(config)

"""What a run's results depend on, as a few digits: runs that have them in common come out the same.

The rule: the configuration that decides (``conf.run.decisive``) under its system's name, with the bytes of a trace
file and of measured tables in the place of their paths; the source of this program with its data, less what only
tells of runs that have ended; the versions of Python, of the packages that run.json lists, and of the tables. Not the
commit: an edited source is another program whether it was committed or not, and a commit that edits none is the same
one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import cast

from conf.run import Run, readable_name
from conf.worlds import table_files
from traces.results.folder import SCHEMA_VERSION
from traces.results.provenance import versions

N_DIGITS = 12
"""48 bits: among a million runs two share a fingerprint with a probability of 0.2 %."""

PACKAGES = ("conf", "executor", "policies", "sim", "traces")

TELLING = frozenset(
    {
        "conf/beside.py",
        "conf/cli.py",
        "conf/cluster.py",
        "conf/compare.py",
        "conf/described.py",
        "conf/experts_csv.py",
        "conf/gather.py",
        "conf/list_policies.py",
        "conf/outcome.py",
        "conf/paper",
        "conf/reference.py",
        "traces/results/changes.py",
        "traces/claims.py",
        "traces/plots/hbm.py",
        "traces/interchange",
        "traces/inspect",
        "traces/page",
        "traces/plots/paper.py",
        "traces/plots/latencies.py",
        "traces/report.py",
        "traces/results/runs_csv.py",
        "traces/sessions/metrics.py",
        "traces/sessions/turns.py",
        "traces/sessions/files.py",
        "traces/plots/style.py",
        "traces/plots/sweep.py",
        "traces/timeline",
    }
)
"""Source that no run executes, files and folders: results are kept when it changes."""


def fingerprint(run: Run) -> str:
    """Digest what the results of a run depend on.

    Raises:
        OSError: its trace file or a measured table cannot be read.
    """
    depends_on = {
        "system": run.system,
        "config": {**run.config, **_with_traces(run), "compute_tables": _tables_digest(run)},
        "program": _program(),
    }
    return sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:N_DIGITS]


def _with_traces(run: Run) -> dict[str, object]:
    """What arrives, with the digest of a trace file in the place of its path."""
    if run.settings.sessions:
        chosen = cast("Mapping[str, Mapping[str, object]]", run.config["sessions"])[run.lengths]
        return {"sessions": {run.lengths: {**chosen, "path": _trace_digest(run.settings.sessions[run.lengths].path)}}}
    arrivals = cast("Mapping[str, object]", run.config["arrivals"])
    return {"arrivals": {**arrivals, "path": _trace_digest(run.settings.arrivals.path)}}


def _trace_digest(path: str | None) -> str | None:
    return None if path is None else _file_digest(Path(path), Path(path).stat().st_mtime_ns)


def folder_name(run: Run) -> str:
    """Name a run's folder, unlike that of any run that may come out otherwise."""
    return f"{readable_name(run)}-{fingerprint(run)}"


def _tables_digest(run: Run) -> list[str] | None:
    """Digest the measured compute times of each model, if there are any."""
    paths = table_files(run)
    return [_file_digest(path, path.stat().st_mtime_ns) for path in paths] if paths else None


@cache
def _program() -> str:
    digest = sha256(json.dumps([SCHEMA_VERSION, versions()]).encode())
    for path in _sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    """Code and data of this program in a fixed order; its YAML is in the configuration already."""
    root = Path(__file__).parents[1]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in (".py", ".json") and not _only_tells(path.relative_to(root)):
                yield path


def _only_tells(path: Path) -> bool:
    return not TELLING.isdisjoint(each.as_posix() for each in (path, *path.parents))


@cache
def _file_digest(path: Path, _mtime_ns: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()

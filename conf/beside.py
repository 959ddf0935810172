"""``python -m sim compare``: runs and logs of real servers beside each other, by the same rules."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from conf.cli import Refused
from conf.outcome import write_report_page
from traces.claims import Result
from traces.interchange.server_logs import as_run, read_server_log
from traces.report import comparison
from traces.results.folder import RunInfo, RunTables, read_run
from traces.results.metrics import summary_of

EXAMPLES = """
A log holds one entry a request: the JSON of vllm bench serve --save-result --save-detailed, the profile_export.jsonl
of aiperf, the requests.jsonl of LLMServingSim's bench.

  python -m sim compare bench.json outputs/mine/RUN              the server first: the others against it
  python -m sim compare bench.json RUN --out beside.html         as a page, too
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``compare``.

    Raises:
        Refused: something that is named is neither a run nor a log.
    """
    parser = ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="+", type=Path, metavar="RUN|LOG", help="folder of a run, or log of a server")
    parser.add_argument("--out", type=Path, metavar="FILE", help="an HTML page of it")
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        try:
            runs = [_opened(path, Path(folder) / str(number)) for number, path in enumerate(options.given)]
            results = list(_beside(runs))
            print(comparison(results))
            for path, run in zip(options.given, runs, strict=True):
                print(f"  {path}: {run.info.device or 'unknown device'}")
            if options.out is not None:
                write_report_page(results, [run.folder for run in runs], options.out)
                print(f"wrote {options.out}")
        except ValueError as mistake:
            raise Refused(str(mistake)) from None
    return 0


def _opened(path: Path, scratch: Path) -> RunTables:
    """A run, or a log as a run in ``scratch``."""
    return read_run(path) if path.is_dir() else as_run(read_server_log(path), scratch, path.stem)


def _beside(runs: Sequence[RunTables]) -> Iterator[Result]:
    """The runs as systems under one workload, that of the first that has a configuration."""
    shown: RunInfo = next((run.info for run in runs if run.info.config), runs[0].info)
    seen: dict[str, int] = {}
    for run in runs:
        name = run.info.label
        seen[name] = seen.get(name, 0) + 1
        told = name if seen[name] == 1 else f"{name} ({seen[name]})"
        info = replace(
            run.info, system=told, mix=shown.mix, lengths=shown.lengths, rate_per_s=shown.rate_per_s, seed=0, grid={}
        )
        yield Result(info=info, summary=summary_of(run.folder))

"""``python -m sim validate RUN``: simulates what ran on a device, and tells the error of every figure.

With ``--against DIR`` it replays what a real vLLM server did (``conf/against.py``). Otherwise:

The same configuration, with the arrivals and lengths that the run recorded, is served by
the simulator; both runs are then summed up by the same rules (``traces/results/metrics.py``). A run of a device is then
played again with its own decisions, and with step times off as they were found to be (``sim/validation/judge.py``).
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import yaml

from conf.again import again
from conf.against import OUT_OF_TOLERANCE, against
from conf.carry_out import carry_out
from conf.cli import Refused
from conf.replays import Played, play
from conf.run import Run
from conf.worlds import TABLES, compute_of, ops_gpu_of, table_files, tables_of
from policies.errors import Stuck
from policies.types import Work
from sim.factory import compute_models
from sim.validation import causes, compare
from sim.validation.compare import TOLERANCES, Compared, Tolerance
from traces.measured.expert_tables import expert_table_path
from traces.results.folder import RunTables, discard, read_run, write_json
from traces.workload.recorded import recorded

N_REPLAYS = 19
"""A run like them lies outside all of them once in ten times."""

EXAMPLES = """
  python -m sim validate outputs/exec_c1/RUN                       with the run's own machine
  python -m sim validate RUN compute=roofline                      by fitted constants instead of measured tables
  python -m sim validate RUN --hardware my_h200.yaml --explain     with a machine as it was measured since
  python -m sim validate RUN --tolerance ttft_p99=5 tbt_p50=2      percent
  python -m sim validate RUN --replays 0                           one simulation, and nothing else
  python -m sim validate --against DIR                             a run of a real vLLM server, replayed
  python -m sim validate --against DIR --tolerance 5 tpot_p99=4    percent: of the three standard figures, of another
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``validate``; 1 if a figure is out of its tolerance.

    Raises:
        Refused: the folder holds no complete run, or its configuration cannot be simulated.
    """
    parser = ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of the run: run.json and its tables")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change, as for run")
    parser.add_argument("--hardware", metavar="FILE", help="hardware to take link, compute and VMM times from")
    parser.add_argument("--tolerance", nargs="+", default=[], metavar="NAME=PERCENT", help=_names())
    parser.add_argument(
        "--replays",
        type=int,
        metavar="N",
        help=f"simulations with step times off as the run's were (a device's run: {N_REPLAYS}, else 0); 0: none",
    )
    parser.add_argument("--explain", action="store_true", help="tell which kinds of steps differ")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="for results (RUN; with --against: none)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="in place of RUN: what a vLLM server did, and its layer_profile/, as LLMServingSim publishes them",
    )
    parser.add_argument("--layers", type=int, metavar="N", help="of the model of DIR, if its name does not tell")
    given = parser.parse_intermixed_args(arguments)
    if given.against is not None:
        if given.run is not None or given.hardware is not None or given.explain:
            raise Refused("--against DIR replays DIR as it was: it goes with --tolerance, --layers and --out only")
        return against(given.against, tolerances=given.tolerance, n_layers=given.layers, out=given.out)
    if given.run is None:
        raise Refused("name the folder of a run, or --against DIR")
    try:
        tolerances = {**TOLERANCES, **dict(map(_tolerance, given.tolerance))}
        real = read_run(given.run)
        if real.state != "complete":
            raise ValueError(f"{given.run} is {real.state}; name the folder of a run that went to its end")
        changes = _changes(real, given.hardware, given.changes)
        run = again(real.info, recorded(real), changes)
        simulated = _simulate(run, given.out or given.run / "simulated")
        found = compare.compare(real, simulated, tolerances)
        step_by_step = again(real.info, recorded(real), {**changes, "backend": {"world": "sim", "leaps": False}})
        played = play(real, step_by_step, found, tolerances, _n_replays(real, given.replays))
    except (ValueError, Stuck) as mistake:
        raise Refused(str(mistake)) from None
    print(f"{real.info.device} and its simulation by {_source(run)}: {real.info.system}, {run.workload.description}")
    print(compare.table(found))
    if given.explain:
        print(_explained(run, real, simulated))
    print(played.text, end="")
    _write((given.out or given.run) / "validate.json", run, found, simulated, played)
    is_within = [each.is_within for each in played.judged or found]
    return OUT_OF_TOLERANCE if any(each is False for each in is_within) else 0


def _n_replays(real: RunTables, wanted: int | None) -> int:
    """How many replays there are to be.

    Raises:
        ValueError: fewer than none.
    """
    if wanted is not None and wanted < 0:
        raise ValueError(f"--replays {wanted} must be 0 or more")
    config: Mapping[str, Any] = real.info.config
    is_enough = config["mix"].get("experts") is None and {"steps", "memory"} <= set(real.kept)
    return (N_REPLAYS if config["backend"]["world"] != "sim" and is_enough else 0) if wanted is None else wanted


def _names() -> str:
    standard = ", ".join(
        f"{name}={tolerance.share * 100:g}" + (f" or {tolerance.n_steps:g} steps" if tolerance.n_steps else "")
        for name, tolerance in TOLERANCES.items()
    )
    return f"what may be off by how much; else {standard}"


def _tolerance(text: str) -> tuple[str, Tolerance]:
    name, _, percent = text.partition("=")
    try:
        return name, Tolerance(float(percent) / 100)
    except ValueError:
        raise ValueError(f"--tolerance {text} must be NAME=PERCENT, as in tbt_p50=5") from None


def _changes(real: RunTables, hardware: str | None, changes: Sequence[str]) -> dict[str, object]:
    """What is changed in the run's configuration: its world, its machine's times, and what the user asks for."""
    config: Mapping[str, Any] = real.info.config
    changed: dict[str, object] = {}
    if config.get("backend", {}).get("world") != "sim":
        changed["backend"] = {"world": "sim", "leaps": True}
        changed["compute"] = "table" if _is_measured(config) else "roofline"
    if hardware is not None:
        changed["hardware"] = _times_of(Path(hardware))
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"{change} must be KEY=VALUE")
        changed[key] = yaml.safe_load(value)
    return changed


def _is_measured(config: Mapping[str, Any]) -> bool:
    """Whether there are tables of the run's machine; of the one model with experts, if that is what it served."""
    folder, experts = TABLES / config["hardware"]["name"], config["mix"].get("experts")
    if experts is None:
        return folder.is_dir()
    return expert_table_path(folder, experts["shape"]["name"], experts["ranks"]["n_ranks"]).is_file()


def _times_of(path: Path) -> dict[str, object]:
    """Take of a hardware file all but its memory, which is the budget under which the run was."""
    try:
        hardware = cast("dict[str, object]", yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"--hardware {path}: {error}; name a file such as conf/hardware/h200_pcie.yaml") from None
    return {key: value for key, value in hardware.items() if key not in ("hbm_bytes", "page_bytes")}


def _simulate(run: Run, folder: Path) -> RunTables:
    if folder.exists():
        discard(folder)
    return read_run(carry_out(run, folder))


def _source(run: Run) -> str:
    tables, gpu = tables_of(run.settings), ops_gpu_of(run.settings)
    if gpu is not None:
        return f"the operations of {gpu} in aiconfigurator-core"
    return f"the roofline of {run.hardware.name}" if tables is None else f"the tables in {tables}"


def _explained(run: Run, real: RunTables, simulated: RunTables) -> str:
    found = causes.causes(real, simulated)
    hardware, experts = run.settings.hardware, run.settings.mix.experts
    models = (
        [compute_of(run, experts)]
        if experts is not None
        else compute_models(
            [model.shape for model in run.models],
            run.hardware,
            roofline=asdict(hardware.roofline),
            flops_per_s=hardware.flops_per_s,
            tables=tables_of(run.settings),
            ops_gpu=ops_gpu_of(run.settings),
        )
    )
    hosts_ns = [[models[cause.kind[0]].host_ns(_step(cause.kind, times)) for times in (1, 2)] for cause in found]
    return causes.table(found, [model.name for model in real.info.models], hosts_ns)


def _step(kind: causes.Kind, times: int) -> Work:
    """A step of a class: its smallest, or the next class's."""
    _, n_prompt, n_decodes = kind
    return Work(
        n_prefill_tokens=n_prompt * times,
        n_prefill_seqs=min(1, n_prompt),
        prefill_pairs=0,
        n_decode_seqs=n_decodes * times,
        decode_context_tokens=n_decodes * times,
        n_sampled=n_decodes * times,
    )


def _write(path: Path, run: Run, found: Sequence[Compared], simulated: RunTables, played: Played) -> None:
    document = {
        "compute": run.settings.compute,
        "tables": [str(path) for path in table_files(run)],
        "simulated": str(simulated.folder),
        "figures": [asdict(each) for each in found],
        "judged": [{**asdict(each), "is_within": each.is_within} for each in played.judged],
        "departed": played.departed,
    }
    try:
        write_json(path, document)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}; copy the run to where you may write") from None

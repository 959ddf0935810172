"""``python -m executor profile``: measures this device, for the simulator.

What is measured is what a run uses: the executor's kernels, graphs, streams, mappings and
loop, with random weights of true shape. It leaves a hardware file, whose roofline is
fitted to the measurement, and tables of the measurement itself; of a mixture of experts
only its table::

    DIR/hardware/NAME.yaml       hardware=NAME
    DIR/tables/NAME/MODEL.csv    compute=table (of one of N ranks: MODEL_tpN.csv)
    DIR/tables/NAME/profile.json link, driver calls, rates, and how far sums of parts are off

``--archive`` puts all of them into one file as well, to be unpacked in DIR elsewhere.
"""

from __future__ import annotations

import re
import shlex
import sys
import tarfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, get_args

import yaml

from conf.cli import Refused
from conf.hardware_file import hardware_yaml
from conf.profile_checks import Check, checks
from executor.devices import World, describe, open_driver, open_peer
from executor.memory.masters import Tier
from executor.profiling.grid import QUICK, QUICK_EXPERTS, WHOLE, WHOLE_EXPERTS
from executor.profiling.profile import ExpertProfile, Profile, profile, profile_experts
from executor.vmm.driver import Driver, DriverError
from policies.moe import MoeShape
from policies.types import MIB, HardwareProfile, LinkProfile, ModelShape
from traces.measured.device_tables import DeviceTable, write_table
from traces.measured.expert_tables import ExpertTimings, described, write_expert_table
from traces.results.folder import write_json
from traces.results.provenance import commit, versions

CONF = Path(__file__).parent
MODELS = ("opt_13b", "opt_30b", "llama_2_13b", "llama_3_8b")
TINY_MODELS = ("tiny_opt", "tiny_llama")
CPU_HBM_BYTES, CPU_PAGE_BYTES = 64 * MIB, 4096
"""The device that stands in on a CPU: room for a tiny model and its KV cache."""

UNKNOWN_LINK = LinkProfile(h2d_bytes_per_s=1, d2h_bytes_per_s=1, joint_bytes_per_s=1)
"""It is about to be measured."""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``profile``.

    Raises:
        Refused: there is no such device or model, or the results cannot be written.
    """
    given = _parse(arguments)
    try:
        shapes = [_read_shape(model) for model in given.model or (TINY_MODELS if given.quick else MODELS)]
        world: World = given.world or ("memfd" if given.quick else "cuda")
        hardware = _device(world, given.name)
        began_s = monotonic()
        with ExitStack() as held:
            driver = held.enter_context(closing(open_driver(world, hardware)))
            peer = None
            if given.tier == "peer":
                peer = held.enter_context(closing(open_peer(world, hardware, given.peer)))
            measured = None
            if dense := [shape for shape in shapes if isinstance(shape, ModelShape)]:
                grid = QUICK if given.quick else WHOLE
                measured = profile(driver, hardware, dense, grid, lambda what: _tell(began_s, what), peer=peer)
            experts = [
                _profile_experts(given, driver, hardware, shape, began_s)
                for shape in shapes
                if isinstance(shape, MoeShape)
            ]
        _write(given, hardware, world, measured, experts)
    except (ValueError, DriverError) as mistake:
        raise Refused(str(mistake)) from None
    except OSError as error:
        raise Refused(f"cannot write {error.filename}: {error.strerror}; name another folder with --out") from None
    _tell(began_s, "done")
    return 0


def _parse(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        nargs="+",
        metavar="MODEL",
        help=f"of conf/model or conf/model/moe, or a YAML file; else {', '.join(MODELS)}",
    )
    ranks = "of a mixture of experts: one rank of N is measured, on one GPU, without what the ranks sum up"
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help=ranks)
    parser.add_argument("--out", type=Path, default=CONF, metavar="DIR", help="else the configuration of this program")
    parser.add_argument("--archive", type=Path, metavar="FILE.tgz", help="also put what is written into this file")
    parser.add_argument("--name", help="of the hardware; else that of the device")
    parser.add_argument("--quick", action="store_true", help="tiny models at a few sizes, on the CPU: does it run?")
    tier = "where layers are fetched from: host memory, or another GPU's (--peer N, else 1)"
    parser.add_argument("--tier", choices=get_args(Tier), default="host", help=tier)
    parser.add_argument("--peer", type=int, default=1, metavar="N", help="which GPU, as the driver counts")
    parser.add_argument("--world", choices=("cuda", "memfd"), help="else cuda, or memfd with --quick")
    return parser.parse_args(arguments)


def _read_shape(name: str) -> ModelShape | MoeShape:
    """Read a description of a dense model, or of one with experts."""
    models = CONF / "model"
    path = Path(name) if name.endswith(".yaml") else models / f"{name}.yaml"
    if not name.endswith(".yaml") and (models / "moe" / path.name).is_file():
        path = models / "moe" / path.name
    try:
        fields: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return described(fields) if "n_experts" in fields else ModelShape(**fields)
    except (OSError, TypeError, yaml.YAMLError) as error:
        known = ", ".join(sorted(each.stem for each in models.rglob("*.yaml")))
        raise ValueError(f"--model {name}: {error}; there are {known}") from None


def _profile_experts(
    given: Namespace, driver: Driver, hardware: HardwareProfile, shape: MoeShape, began_s: float
) -> ExpertProfile:
    grid = QUICK_EXPERTS if given.quick else WHOLE_EXPERTS
    return profile_experts(driver, hardware, shape, given.ranks, grid, lambda what: _tell(began_s, what))


def _device(world: World, name: str | None) -> HardwareProfile:
    """What is known of the device before it is measured."""
    if world == "memfd":
        return _hardware(name or "memfd", CPU_HBM_BYTES, CPU_PAGE_BYTES)
    import torch

    cuda: Any = torch.cuda
    if not cuda.is_available():
        open_driver(world, _hardware("unknown", 1, 1)).close()  # it says better why
        raise ValueError("torch finds no GPU; run python -m executor doctor, or measure a CPU with --quick")
    properties = cuda.get_device_properties(0)
    plain = re.sub(r"[^a-z0-9]+", "_", properties.name.lower()).strip("_")
    hardware = _hardware(name or plain, int(properties.total_memory), 1)
    driver = open_driver(world, hardware)
    page_bytes = driver.granularity_bytes
    driver.close()
    return _hardware(hardware.name, hardware.hbm_bytes, page_bytes)


def _hardware(name: str, hbm_bytes: int, page_bytes: int) -> HardwareProfile:
    return HardwareProfile(name=name, hbm_bytes=hbm_bytes, hbm_bytes_per_s=1, page_bytes=page_bytes, link=UNKNOWN_LINK)


def _write(
    given: Namespace,
    hardware: HardwareProfile,
    world: World,
    measured: Profile | None,
    experts: Sequence[ExpertProfile],
) -> None:
    out: Path = given.out
    about = {
        "device": describe(world),
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": commit() or "unknown",
        "versions": ", ".join(f"{package} {version}" for package, version in versions().items()),
        "command": _command(given),
    }
    folder = out / "tables" / hardware.name
    folder.mkdir(parents=True, exist_ok=True)
    written = [write_expert_table(folder, _expert_table(each, about)) for each in experts]
    found = list[Check]()
    if measured is not None:
        paths, found = _write_dense(folder, out / "hardware" / f"{hardware.name}.yaml", hardware, measured, about)
        written += paths
    for each in written:
        print(f"wrote {each}")
    if given.archive:
        with tarfile.open(given.archive, "w:gz") as archive:
            for each in written:
                archive.add(each, arcname=each.relative_to(out))
    for check in found:
        print(check.line)


def _write_dense(
    folder: Path, path: Path, hardware: HardwareProfile, measured: Profile, about: dict[str, str]
) -> tuple[list[Path], list[Check]]:
    """Write the tables of dense models, and the machine that was measured with them; tell the files, and the checks."""
    tables = [
        DeviceTable(shape=shape, padding=measured.padding, about=about, timings=tuple(timings))
        for shape, timings in measured.models
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [write_table(folder, table) for table in tables]
    text, roofline = hardware_yaml(hardware.name, hardware, measured.machine, tables)
    path.write_text(text, encoding="utf-8")
    found = [check for table in tables for check in checks(table, measured.machine.copy_bytes_per_s)]
    document = {
        "about": about,
        "machine": asdict(measured.machine),
        "roofline": asdict(roofline),
        "checks": [asdict(check) for check in found],
    }
    write_json(folder / "profile.json", document)
    return [*written, path, folder / "profile.json"], found


def _expert_table(measured: ExpertProfile, about: dict[str, str]) -> ExpertTimings:
    return ExpertTimings(
        shape=measured.shape,
        n_ranks=measured.n_ranks,
        padding=measured.padding,
        about=about,
        timings=tuple(measured.timings),
    )


def _command(given: Namespace) -> str:
    """The command line again, without the folders of this machine."""
    models = ["--model", *(Path(model).stem for model in given.model)] if given.model else []
    ranks = ["--ranks", str(given.ranks)] if given.ranks != 1 else []
    named = ["--name", given.name] if given.name else []
    world = ["--world", given.world] if given.world else []
    quick = ["--quick"] if given.quick else []
    tier = ["--tier", given.tier, "--peer", str(given.peer)] if given.tier == "peer" else []
    return shlex.join(["python", "-m", "executor", "profile", *models, *ranks, *named, *world, *quick, *tier])


def _tell(began_s: float, what: str) -> None:
    print(f"{monotonic() - began_s:6.1f} s  {what}", file=sys.stderr, flush=True)

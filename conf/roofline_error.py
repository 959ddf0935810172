"""``python -m sim roofline``: how far the roofline of a machine is from operations measured on that GPU.

Layers of decode steps and of prefills, as ``compute=roofline`` and ``compute=aiconfigurator`` have them.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from omegaconf import OmegaConf

from conf.build import hardware_profile
from conf.cli import Refused
from conf.editable import editable, frozen
from conf.models import named
from conf.schema import Hardware
from conf.worlds import OPS_GPUS
from policies.types import ModelShape, Work
from sim.compute.base import ComputeModel
from sim.factory import compute_models

MACHINES = Path(__file__).parent / "hardware"

BATCHES = (1, 4, 16, 64, 128, 256)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
PROMPTS = (64, 256, 512, 1024, 2048, 4096, 8192)

EXAMPLES = """
examples:
  python -m sim roofline                                             OPT-13b and Llama-3-8b on an H100 SXM
  python -m sim roofline --hardware h200_sxm --models qwen3_8b --rows
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A layer under both."""

    what: str
    kind: str
    roofline_us: float
    measured_us: float

    @property
    def error(self) -> float:
        """Of the roofline, as a share of what was measured."""
        return self.roofline_us / self.measured_us - 1


def main(arguments: Sequence[str]) -> int:
    """Carry out ``roofline``.

    Raises:
        Refused: there is no such machine, model or measurement.
    """
    parser = ArgumentParser(
        prog="python -m sim roofline",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hardware", default="h100_sxm", metavar="NAME", help=f"of {', '.join(OPS_GPUS)} (h100_sxm)")
    parser.add_argument("--gpu", metavar="NAME", help="whose operations are meant, in place of the hardware's own")
    parser.add_argument("--models", default="opt_13b,llama_3_8b", metavar="NAME,...", help="(opt_13b,llama_3_8b)")
    parser.add_argument("--rows", action="store_true", help="every layer, not only the means")
    given = parser.parse_args(arguments)
    try:
        gpu = given.gpu or OPS_GPUS.get(given.hardware)
        if gpu is None:
            raise ValueError(f"--hardware {given.hardware} is none of {', '.join(OPS_GPUS)}; name a --gpu")
        found = {name: list(rows(name, given.hardware, gpu)) for name in given.models.split(",")}
    except ValueError as mistake:
        raise Refused(str(mistake)) from None
    print("\n".join(_told(found, f"roofline of {given.hardware} against operations of {gpu}", each=given.rows)))
    return 0


def rows(name: str, hardware: str, gpu: str) -> Iterator[Row]:
    """Compare the layers of a model.

    Raises:
        ValueError: there is no such machine or model, or an operation was not measured.
    """
    shape = named(name).shape
    machine = _machine(hardware)
    fitted, measured = (
        compute_models(
            [shape],
            hardware_profile(machine),
            roofline=asdict(machine.roofline),
            flops_per_s=machine.flops_per_s,
            tables=None,
            ops_gpu=each,
        )[0]
        for each in (None, gpu)
    )
    for kind, what, work in _works(shape):
        yield Row(what=what, kind=kind, roofline_us=_us(fitted, work), measured_us=_us(measured, work))


def _machine(name: str) -> Hardware:
    path = MACHINES / f"{name}.yaml"
    if Path(name).name != name or not path.is_file():
        known = ", ".join(sorted(each.stem for each in MACHINES.glob("*.yaml")))
        raise ValueError(f"--hardware {name}: there is no such machine; there are {known}")
    filled: Any = OmegaConf.merge(OmegaConf.structured(editable(Hardware)), OmegaConf.load(path))
    return frozen(Hardware, OmegaConf.to_object(filled))


def _us(model: ComputeModel, work: Work) -> float:
    return model.layer_ns(work) / 1000


def _works(shape: ModelShape) -> Iterator[tuple[str, str, Work]]:
    for context in CONTEXTS:
        for n in BATCHES:
            if context <= shape.max_context_tokens:
                yield "decode", f"{n} x {context} tokens", Work(0, 0, 0, n, n * context, n)
    for n in PROMPTS:
        if n <= shape.max_context_tokens:
            yield "prefill", f"a prompt of {n}", Work(n, 1, n * (n + 1) // 2, 0, 0, 1)


def _told(found: dict[str, list[Row]], heading: str, *, each: bool) -> Iterator[str]:
    yield f"{heading}: error of a layer"
    yield f"{'':<20} {'':<8} {'rows':>5} {'mean |error|':>13} {'mean':>7} {'worst':>7}  where"
    for name, own in found.items():
        for kind in ("decode", "prefill"):
            of = [row for row in own if row.kind == kind]
            worst = max(of, key=lambda row: abs(row.error))
            mean_abs, mean = fmean(abs(row.error) for row in of), fmean(row.error for row in of)
            yield (
                f"{name:<20} {kind:<8} {len(of):>5} {mean_abs:>13.1%} {mean:>+7.1%} {worst.error:>+7.1%}  {worst.what}"
            )
    if each:
        yield f"\n{'':<20} {'':<20} {'roofline us':>12} {'measured us':>12} {'error':>7}"
        for name, own in found.items():
            for row in own:
                yield f"{name:<20} {row.what:<20} {row.roofline_us:>12.1f} {row.measured_us:>12.1f} {row.error:>+7.1%}"

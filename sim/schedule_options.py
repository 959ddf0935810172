"""The options of ``python -m sim schedule``: the command line, and the file behind ``--args``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from policies.types import NS_PER_S
from sim.linear import LinearTime

PROG = "python -m sim schedule"
UNBOUNDED_MODEL_LEN = 131_072  # what the recorded cases with chunked prefill have

DESCRIPTION = (
    "Runs a trace through the scheduler of vLLM 0.7.3 (vllm_v0) or 0.15.1 (vllm_v1) and writes what it does at every "
    "step as JSON lines."
)
EXAMPLE = f"example: {PROG} --scheduler vllm_v1 --trace case.csv --args case.args.json --out log.jsonl"

ONLY = {
    "vllm_v0": ("num_cpu_blocks", "async_output", "preemption_mode", "leaps"),
    "vllm_v1": ("async_sched", "long_prefill_threshold", "mamba_groups", "reserve_full_isl"),
}
"""Options that one scheduler has and the other does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command was told, under vLLM's names. ``None``: as that version of vLLM has it by default."""

    scheduler: Literal["vllm_v0", "vllm_v1"]
    trace: Path
    out: Path
    num_blocks: int
    args: Path | None = None
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 0
    chunked: bool | None = None
    prefix_caching: bool | None = None
    step_time: LinearTime = field(default_factory=lambda: LinearTime(5_000_000, 20_000, 100_000))
    max_steps: int = 20_000

    num_cpu_blocks: int = 0
    async_output: bool = True
    preemption_mode: Literal["auto", "recompute", "swap"] = "auto"
    leaps: bool = False

    async_sched: bool = True
    long_prefill_threshold: int = 0
    mamba_groups: int = 0
    reserve_full_isl: bool = False

    def __post_init__(self) -> None:
        if self.num_blocks < 1 or self.max_steps < 1:
            raise ValueError(f"num_blocks={self.num_blocks} and max_steps={self.max_steps} must be at least 1")

    def model_len(self, *, chunked: bool) -> int:
        """The longest sequence, where 0 stands for the most that goes with the other settings."""
        return self.max_model_len or (UNBOUNDED_MODEL_LEN if chunked else self.max_num_batched_tokens)


class _Parser(argparse.ArgumentParser):
    """Takes a mistake as a ``ValueError``, like every other."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; --help lists the options")


def read_options(argv: Sequence[str]) -> Options:
    """Read the command line, and the file behind ``--args`` where the command line says nothing.

    Raises:
        ValueError: an option is unknown, missing or has a value that it cannot have.
    """
    parser = _parser()
    given = vars(parser.parse_args(argv))
    if "args" in given:
        given = _read_args(parser, given["args"]) | given
    missing = [name for name in ("scheduler", "trace", "out", "num_blocks") if name not in given]
    if missing:
        raise ValueError(f"--{missing[0].replace('_', '-')} is missing; --help lists the options")
    _refuse_foreign(given)
    return Options(**given)


def _refuse_foreign(given: dict[str, Any]) -> None:
    for scheduler, names in ONLY.items():
        foreign = [name for name in names if name in given and scheduler != given["scheduler"]]
        if foreign:
            option = f"--{foreign[0].replace('_', '-')}"
            raise ValueError(f"{option} is an option of {scheduler}, not of {given['scheduler']}; leave it out")


def _read_args(parser: argparse.ArgumentParser, path: Path) -> dict[str, Any]:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object of options")
        items = cast("dict[str, object]", content).items()
        return vars(parser.parse_args([f"--{name.replace('_', '-')}={_text(value)}" for name, value in items]))
    except (OSError, ValueError) as error:
        raise ValueError(f"args {path}: {error}") from error


def _text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        usage=f"{PROG} --scheduler vllm_v0|vllm_v1 --trace FILE --out FILE --num-blocks N [options]",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--scheduler", choices=list(ONLY), help="which version's scheduler (required)")
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="CSV with the columns id, arrival (s), prompt, output_len (required). A prompt is NAME:N|NAME:N, the "
        "first N tokens of each stream; outR is the stream that request R produces",
    )
    add(
        "--args",
        type=Path,
        metavar="FILE",
        help="JSON object of the options below, with _ for -; the command line overrides it",
    )
    add("--out", type=Path, metavar="FILE", help="where the log goes (required); written whole or not at all")
    add("--num-blocks", type=int, metavar="N", help="KV blocks (required)")
    add("--block-size", type=int, metavar="N", help="tokens of a block (default 16)")
    add("--max-num-seqs", type=int, metavar="N", help="requests that may run at once (default 256)")
    add("--max-num-batched-tokens", type=int, metavar="N", help="tokens that a step may compute (default 2048)")
    add(
        "--max-model-len",
        type=int,
        metavar="N",
        help=f"longest sequence; 0 (default) is {UNBOUNDED_MODEL_LEN} with chunked prefill, else the tokens of a step",
    )
    add("--chunked", type=_on_off, metavar="on|off", help="chunked prefill (default: off in V0, on in V1)")
    add(
        "--prefix-caching",
        type=_on_off,
        metavar="on|off",
        help="prefix caching (default: off in V0, on in V1 but for hybrid models)",
    )
    add(
        "--step-time",
        type=_linear_time,
        metavar="A,B,C",
        help="seconds of a step, and of each token and request in it (default 0.005,0.00002,0.0001)",
    )
    add("--max-steps", type=int, metavar="N", help="stop after so many steps (default 20000)")
    _add_v0(parser.add_argument_group("options of vllm_v0"))
    _add_v1(parser.add_argument_group("options of vllm_v1"))
    return parser


def _add_v0(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--num-cpu-blocks", type=int, metavar="N", help="host blocks for swapped requests (default 0)")
    add("--async-output", type=_on_off, metavar="on|off", help="stop checks one step late (default on)")
    add("--preemption-mode", choices=["auto", "recompute", "swap"], help="what becomes of a victim (default auto)")
    add("--leaps", type=_on_off, metavar="on|off", help="submit like steps together (default off); the log is the same")


def _add_v1(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--async-sched", type=_on_off, metavar="on|off", help="compose a step while one runs (default on)")
    add("--long-prefill-threshold", type=int, metavar="N", help="tokens of one prompt in a step; 0 (default): any")
    add("--mamba-groups", type=int, metavar="N", help="groups of state layers of a hybrid model (default 0)")
    add(
        "--reserve-full-isl",
        type=_on_off,
        metavar="on|off",
        help="admit only what fits with its whole prompt, as newer versions do (default off)",
    )


def _on_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text == "on"


def _linear_time(text: str) -> LinearTime:
    try:
        step, token, request = (round(float(part) * NS_PER_S) for part in text.split(","))
        return LinearTime(step, token, request)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not A,B,C in seconds, each at least 0") from error

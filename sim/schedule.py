"""``python -m sim schedule``: a scheduler alone, under a linear step-time model, logged step by step."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO, cast

from policies.engine import Outcome
from policies.lane import TrueLengths
from policies.serving.blocks import BlockPool
from policies.serving.vllm_v0.scheduler import V0Settings, VllmV0
from policies.types import NS_PER_S, Arrival
from sim.linear import LinearTime, serve_alone
from sim.schedule_log import ScheduleLog
from sim.trace_case import read_trace

PROG = "python -m sim schedule"
MISTAKE = 2  # as argparse has it
UNBOUNDED_MODEL_LEN = 131_072  # what the recorded cases with chunked prefill have

DESCRIPTION = "Runs a trace through vLLM 0.7.3's scheduler and writes what it does at every step as JSON lines."
EXAMPLE = f"example: {PROG} --scheduler vllm_v0 --trace case.csv --args case.args.json --out log.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command was told, under vLLM's names."""

    scheduler: Literal["vllm_v0"]
    trace: Path
    out: Path
    num_blocks: int
    args: Path | None = None
    num_cpu_blocks: int = 0
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 0
    chunked: bool = False
    prefix_caching: bool = False
    async_output: bool = True
    preemption_mode: Literal["auto", "recompute", "swap"] = "auto"
    step_time: LinearTime = field(default_factory=lambda: LinearTime(5_000_000, 20_000, 100_000))
    max_steps: int = 20_000
    leaps: bool = False


def main(argv: list[str]) -> int:
    """Carry out the command; returns the exit code."""
    try:
        options = read_options(argv)
        arrivals = read_trace(options.trace)
        with _replacing(options.out) as file:
            summary = run(options, arrivals, file)
    except ValueError as mistake:
        print(f"{PROG}: {mistake}", file=sys.stderr)
        return MISTAKE
    print(summary)
    return 0


def run(options: Options, arrivals: Sequence[Arrival], file: TextIO) -> str:
    """Serve the requests and write the log; returns a line that sums it up.

    Raises:
        ValueError: a setting is impossible, or swapping needs more ``num_cpu_blocks``.
    """
    settings = _settings(options)
    truth, pool = TrueLengths(), BlockPool(options.num_blocks, caching=options.prefix_caching)
    scheduler = VllmV0(settings, pool)
    log = ScheduleLog(file, settings, options.step_time)
    log.meta(options.num_blocks, len(arrivals))
    outcome, end_ns = serve_alone(
        scheduler,
        iter(sorted(arrivals, key=lambda arrival: arrival.request.arrival_ns)),
        truth=truth,
        time=options.step_time,
        journal=log,
        max_steps=options.max_steps,
        leaps=options.leaps,
    )
    log.close(outcome, end_ns, arrivals, scheduler.live())
    left = "" if outcome is Outcome.DONE else f", {len(list(scheduler.live()))} left ({outcome.value})"
    return (
        f"{len(arrivals)} requests, {log.n_steps} steps, {log.n_preemptions} preemptions, "
        f"{end_ns / NS_PER_S:.3f} s{left}: {options.out}"
    )


def _settings(options: Options) -> V0Settings:
    if options.num_blocks < 1 or options.max_steps < 1:
        raise ValueError(f"num_blocks={options.num_blocks} and max_steps={options.max_steps} must be at least 1")
    if options.leaps and options.prefix_caching:
        raise ValueError("leaps=on: the log counts cached blocks at every step; leave it off with prefix_caching=on")
    unbounded = UNBOUNDED_MODEL_LEN if options.chunked else options.max_num_batched_tokens
    return V0Settings(
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.max_model_len or unbounded,
        block_tokens=options.block_size,
        max_num_seqs=options.max_num_seqs,
        chunked_prefill=options.chunked,
        preemption=options.preemption_mode,
        prefix_caching=options.prefix_caching,
        async_output=options.async_output,
        n_cpu_blocks=options.num_cpu_blocks,
    )


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
    return Options(**given)


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
        usage=f"{PROG} --scheduler vllm_v0 --trace FILE --out FILE --num-blocks N [options]",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--scheduler", choices=["vllm_v0"], help="which version's scheduler (required)")
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
    add("--num-cpu-blocks", type=int, metavar="N", help="host blocks for swapped requests (default 0)")
    add("--block-size", type=int, metavar="N", help="tokens of a block (default 16)")
    add("--max-num-seqs", type=int, metavar="N", help="requests that may run at once (default 256)")
    add("--max-num-batched-tokens", type=int, metavar="N", help="tokens that a step may compute (default 2048)")
    add(
        "--max-model-len",
        type=int,
        metavar="N",
        help=f"longest sequence; 0 (default) is {UNBOUNDED_MODEL_LEN} with chunked prefill, else the tokens of a step",
    )
    add("--chunked", type=_on_off, metavar="on|off", help="chunked prefill (default off)")
    add("--prefix-caching", type=_on_off, metavar="on|off", help="prefix caching (default off)")
    add("--async-output", type=_on_off, metavar="on|off", help="stop checks one step late (default on)")
    add("--preemption-mode", choices=["auto", "recompute", "swap"], help="what becomes of a victim (default auto)")
    add(
        "--step-time",
        type=_linear_time,
        metavar="A,B,C",
        help="seconds of a step, and of each token and request in it (default 0.005,0.00002,0.0001)",
    )
    add("--max-steps", type=int, metavar="N", help="stop after so many steps (default 20000)")
    add("--leaps", type=_on_off, metavar="on|off", help="submit like steps together (default off); the log is the same")
    return parser


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


@contextmanager
def _replacing(path: Path) -> Generator[TextIO]:
    """Open a new file beside ``path`` that takes its place if nothing goes wrong.

    Raises:
        ValueError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise ValueError(f"out {path}: {error.strerror}; give a file in a folder that can be written") from error
    finally:
        partial.unlink(missing_ok=True)

"""``python -m sim schedule``: a scheduler alone, under a linear step-time model, logged step by step."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from policies.engine import Outcome
from policies.lane import TrueLengths
from policies.serving.blocks import BlockPool
from policies.serving.vllm_v0.scheduler import V0Settings, VllmV0
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.serving.vllm_v1.scheduler import VllmV1
from policies.serving.vllm_v1.settings import V1Settings
from policies.types import NS_PER_S, Arrival
from sim.linear import serve_alone
from sim.schedule_log import ScheduleLog
from sim.schedule_log_v1 import ScheduleLogV1
from sim.schedule_options import PROG, Options, read_options
from sim.trace_case import read_trace

MISTAKE = 2  # as argparse has it


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
    match options.scheduler:
        case "vllm_v0":
            return _run_v0(options, arrivals, file)
        case "vllm_v1":
            return _run_v1(options, arrivals, file)


def _run_v0(options: Options, arrivals: Sequence[Arrival], file: TextIO) -> str:
    settings = _v0_settings(options)
    truth, pool = TrueLengths(), BlockPool(options.num_blocks, caching=settings.prefix_caching)
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
    return _summary(options, len(arrivals), log, outcome, end_ns, scheduler.n_live)


def _run_v1(options: Options, arrivals: Sequence[Arrival], file: TextIO) -> str:
    settings = _v1_settings(options)
    scheduler = VllmV1(settings, FreeQueuePool(options.num_blocks))
    log = ScheduleLogV1(file, settings, options.step_time, scheduler)
    log.meta(len(arrivals))
    outcome, end_ns = serve_alone(
        scheduler,
        iter(sorted(arrivals, key=lambda arrival: arrival.request.arrival_ns)),
        truth=TrueLengths(),
        time=options.step_time,
        journal=log,
        max_steps=options.max_steps,
    )
    log.close(outcome, end_ns, arrivals)
    return _summary(options, len(arrivals), log, outcome, end_ns, scheduler.n_live)


def _summary(
    options: Options, n_requests: int, log: ScheduleLog | ScheduleLogV1, outcome: Outcome, end_ns: int, n_left: int
) -> str:
    left = "" if outcome is Outcome.DONE else f", {n_left} left ({outcome.value})"
    return (
        f"{n_requests} requests, {log.n_steps} steps, {log.n_preemptions} preemptions, "
        f"{end_ns / NS_PER_S:.3f} s{left}: {options.out}"
    )


def _v0_settings(options: Options) -> V0Settings:
    chunked, caching = bool(options.chunked), bool(options.prefix_caching)
    if options.leaps and caching:
        raise ValueError("leaps=on: the log counts cached blocks at every step; leave it off with prefix_caching=on")
    return V0Settings(
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.model_len(chunked=chunked),
        block_tokens=options.block_size,
        max_num_seqs=options.max_num_seqs,
        chunked_prefill=chunked,
        preemption=options.preemption_mode,
        prefix_caching=caching,
        async_output=options.async_output,
        n_cpu_blocks=options.num_cpu_blocks,
    )


def _v1_settings(options: Options) -> V1Settings:
    chunked = options.chunked is not False
    caching = options.prefix_caching
    return V1Settings(
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=options.model_len(chunked=chunked),
        block_tokens=options.block_size,
        max_num_seqs=options.max_num_seqs,
        chunked_prefill=chunked,
        prefix_caching=not options.mamba_groups if caching is None else caching,
        async_scheduling=options.async_sched,
        long_prefill_tokens=options.long_prefill_threshold,
        n_state_groups=options.mamba_groups,
        reserve_full_isl=options.reserve_full_isl,
    )


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

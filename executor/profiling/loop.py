"""What the host takes of each step: the executor's own loop, with real requests, less the device's time."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import count

from executor.profiling.specimen import SEED, Specimen
from executor.profiling.stopwatch import Size, timing
from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.engine import Engine
from policies.journal import GapCause, HbmUse
from policies.lane import TrueLengths
from policies.recompute import Recompute
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence as Served
from policies.serving.tenancy import TemporalSharing
from policies.types import Arrival, Request
from policies.view import MemoryView
from traces.measured.device_tables import Padding, Part, Timing

LEAD_NS = 20_000_000
"""Requests arrive so long after the loop has begun: it waits for them, as a server does."""

N_PREFILLS = 3
"""How often a prefill step of each size is served."""

N_LAUNCHES, LAUNCH_TOKENS = 24, 40
"""Requests whose prompts join others that decode, and output tokens of each."""

APART_NS = 50_000_000
"""They come so far apart, in which a model decodes some tokens: each prompt is a step beside decodes."""

LAUNCH_IDS = 1_000_000
"""From here on their requests are numbered: above those of any other loop."""

PROMPT_TOKENS = (9, 40)
"""Shortest and longest prompt: their KV blocks fill up at different steps, so that leaps are as long as they are."""


@dataclass(frozen=True, slots=True)
class Rests:
    """Keeps of each step what the device's layers do not account for (a ``Journal``).

    Attributes:
        padding: says which steps of prefills run as graphs.
        by_part: rests in ns by kind and number of sequences, of steps that only decode and that only prefill.
        mixed_ns: times of the layers of steps that do both.
    """

    padding: Padding
    by_part: dict[Part, dict[int, list[int]]] = field(default_factory=dict[Part, dict[int, list[int]]])
    mixed_ns: list[int] = field(default_factory=list[int])

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:  # noqa: ARG002
        """Keep the rests of a submission."""
        work = batch.work
        if work.n_prefill_seqs and work.n_decode_seqs:
            self.mixed_ns.extend(report.compute_ns)
            return
        if not work.n_prefill_seqs:
            part = Part.DECODE_HOST
        elif self.padding.prefill_rows(work.n_prefill_tokens, work.n_prefill_seqs) is None:
            part = Part.PREFILL_HOST
        else:
            part = Part.GRAPHED_PREFILL_HOST
        rests_ns = self.by_part.setdefault(part, {}).setdefault(work.n_prefill_seqs + work.n_decode_seqs, [])
        rests_ns.extend(report.rest_ns)

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        """Keep nothing."""

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Keep nothing."""

    def retired(self, lane: int, now_ns: int, seqs: Seq[Served], scheduler: Scheduler) -> None:
        """Keep nothing."""

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Keep nothing."""

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Keep nothing."""


def measure_loop(model: Specimen, heads: Sequence[Timing]) -> Iterator[Timing]:
    """Measure host times of decode and prefill steps.

    Args:
        heads: device times outside the layers, which are no host time.
    """
    grid, rests, request_ids = model.grid, Rests(model.padding), count()
    _serve(model, [PROMPT_TOKENS[0]], 1, request_ids, Rests(model.padding))  # the first step waits for what was before
    for n_requests in grid.loops:
        _serve(model, _uneven(n_requests), grid.n_loop_tokens, request_ids, rests)
    for n_requests in grid.prefill_loops:
        n_short = min(max(PROMPT_TOKENS), grid.n_graphed_tokens // n_requests)
        for n_each in (n_short, -(-grid.n_eager_tokens // n_requests)) * N_PREFILLS:
            _serve(model, [n_each] * n_requests, 1, request_ids, rests)
    for part, by_seqs in rests.by_part.items():
        for n_seqs, rests_ns in sorted(by_seqs.items()):
            if part is not Part.DECODE_HOST or n_seqs in grid.loops:
                head_ns = next((head.ns for head in heads if head.n_seqs >= n_seqs), heads[-1].ns)
                hosts_ns = [max(0, rest_ns - head_ns) for rest_ns in rests_ns]
                yield timing(part, Size(n_seqs, n_seqs), hosts_ns, is_mean=part is Part.DECODE_HOST)


def measure_launches(model: Specimen) -> Iterator[Timing]:
    """Measure how long a layer takes of steps so small that launching it kernel by kernel takes longer than running it.

    In the loop the host has done other things in between, and is slower at it than over and over again. On a CPU
    nothing is launched.
    """
    if model.device.type == "cpu":
        yield timing(Part.LAUNCH, Size(1, 1), [0])
        return
    rests = Rests(model.padding)
    _serve(model, [PROMPT_TOKENS[0]] * N_LAUNCHES, LAUNCH_TOKENS, count(LAUNCH_IDS), rests, APART_NS)
    yield timing(Part.LAUNCH, Size(1, PROMPT_TOKENS[0]), rests.mixed_ns, n_parts=model.shape.n_layers)


def _uneven(n_requests: int) -> list[int]:
    """Choose lengths of prompts."""
    draw = random.Random(SEED)
    return [draw.randint(*PROMPT_TOKENS) for _ in range(n_requests)]


def _serve(
    model: Specimen,
    prompts: Sequence[int],
    n_output_tokens: int,
    request_ids: Iterator[int],
    rests: Rests,
    apart_ns: int = 0,
) -> None:
    """Let the loop serve requests that come at once, or so far apart."""
    gc.collect()
    ledger, lanes = model.open_books()
    at_ns = model.clock.now_ns + LEAD_NS
    longest = model.shape.max_context_tokens - n_output_tokens
    arrivals = [
        _arrival(next(request_ids), at_ns + nth * apart_ns, min(n_tokens, longest), n_output_tokens)
        for nth, n_tokens in enumerate(prompts)
    ]
    engine = Engine(
        lanes=lanes,
        truth=TrueLengths(),
        policy=Recompute(),
        tenancy=TemporalSharing(quantum_s=0.1, order="round_robin", priorities=(None,)),
        ledger=ledger,
        backend=model.serving.backend,
        hardware=model.hardware,
        journal=rests,
    )
    engine.run(iter(arrivals))


def _arrival(request_id: int, at_ns: int, n_prompt_tokens: int, n_output_tokens: int) -> Arrival:
    request = Request(
        request_id=request_id,
        model=0,
        arrival_ns=at_ns,
        n_prompt_tokens=n_prompt_tokens,
        max_output_tokens=n_output_tokens,
    )
    return Arrival(request=request, n_output_tokens=n_output_tokens)

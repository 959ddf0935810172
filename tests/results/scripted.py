"""Small facts from which the tests of results are scripted."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from policies.backend import Batch, StepReport
from policies.decision import Decision, Reason
from policies.journal import HbmUse
from policies.memory.residency import Loan, Residency, Target
from policies.serving.scheduler import Scheduler
from policies.serving.sequence import Sequence, State
from policies.types import GIB, NS_PER_S, HardwareProfile, LinkProfile, ModelShape, Request, Work
from policies.view import Ask, MemoryView, ModelView
from traces.results.folder import ModelInfo, RunInfo
from traces.results.results import RunWriter

TABLES = ("requests", "steps", "decisions", "memory", "gaps")
NO_SCHEDULER = cast("Scheduler", None)

_LAYERS = 4


def info(**changes: Any) -> RunInfo:
    """Two models, as run.json has them."""
    given: dict[str, Any] = {
        "system": "mirage",
        "mix": "c1",
        "lengths": "alpaca",
        "rate_per_s": 2.0,
        "seed": 7,
        "models": (ModelInfo(name="left", block_bytes=1), ModelInfo(name="right", block_bytes=1)),
    }
    return RunInfo(**{**given, **changes})


def sequence(
    request_id: int,
    *,
    arrival_s: float = 0,
    tokens_s: Seq[float] = (),
    n_prompt_tokens: int = 10,
    state: State = State.FINISHED,
    n_recomputed: int = 0,
) -> Sequence:
    """A request whose output tokens came at ``tokens_s``."""
    seq = Sequence(
        Request(
            request_id=request_id,
            model=0,
            arrival_ns=round(arrival_s * NS_PER_S),
            n_prompt_tokens=n_prompt_tokens,
            max_output_tokens=100,
        )
    )
    tokens_ns = [round(token_s * NS_PER_S) for token_s in tokens_s]
    seq.state = state
    seq.n_output = len(tokens_ns)
    if tokens_ns:
        seq.first_token_ns, seq.last_token_ns = tokens_ns[0], tokens_ns[-1]
    seq.finish_ns = seq.last_token_ns if state is State.FINISHED else None
    seq.max_gap_ns = max((after - before for before, after in pairwise(tokens_ns)), default=0)
    seq.n_recomputed = n_recomputed
    seq.n_preemptions = int(n_recomputed > 0)
    return seq


def batch(*, n_decode_seqs: int = 3, n_prefill_tokens: int = 0) -> Batch:
    work = Work(
        n_prefill_tokens=n_prefill_tokens,
        n_prefill_seqs=int(n_prefill_tokens > 0),
        prefill_pairs=0,
        n_decode_seqs=n_decode_seqs,
        decode_context_tokens=0,
        n_sampled=n_decode_seqs,
    )
    return Batch(work=work)


def report(start_ns: int, ends_ns: list[int], stall_ns: list[int], **waits_ns: int) -> StepReport:
    zeros = [0] * len(ends_ns)
    return StepReport(
        lane=0, start_ns=start_ns, ends_ns=ends_ns, compute_ns=zeros, stall_ns=stall_ns, rest_ns=zeros, **waits_ns
    )


def use(model: int, *, lent_bytes: int = 0, n_base_used: int = 0) -> HbmUse:
    return HbmUse(
        model=model,
        resident_bytes=4 * GIB - lent_bytes,
        slot_bytes=0,
        loading_bytes=0,
        lent_bytes=lent_bytes,
        n_base_blocks=10,
        n_base_used=n_base_used,
        n_lent_blocks=0,
        n_lent_used=0,
    )


def lends(homes: Seq[int], *, borrower: int = 1) -> tuple[Target, ...]:
    """Targets in which model 0 lends these homes (none of them 0, its slot) and model 1 nothing."""
    loans = tuple(Loan(home, borrower) for home in homes)
    cycling = (0, *sorted(homes)) if homes else ()
    return Target(cycling=cycling, n_slots=int(bool(homes)), loans=loans), Target()


def view(homes: Seq[int], *, borrower: int = 1) -> MemoryView:
    """What a policy sees while model 0 lends these homes."""
    target, _ = lends(homes, borrower=borrower)
    lender = Residency(
        homes=tuple(None if layer in target.cycling else layer for layer in range(_LAYERS)),
        slots=(0,) if homes else (),
        loans=target.loans,
    )
    link = LinkProfile(h2d_bytes_per_s=10**9, d2h_bytes_per_s=10**9, joint_bytes_per_s=10**9)
    hardware = HardwareProfile(name="h", hbm_bytes=10**9, hbm_bytes_per_s=10**9, page_bytes=2**21, link=link)
    models = tuple(_model(residency) for residency in (lender, Residency.all_resident(_LAYERS)))
    return MemoryView(
        step=5, ask=Ask.WAITING_SHORT, asker=1, n_short_blocks=2, hardware=hardware, models=models, ranges=()
    )


def decide(
    writer: RunWriter, at_s: float, before: Seq[int], after: Seq[int], *, borrower: int = 1, refused: bool = False
) -> None:
    """Tell a decision that takes model 0 from one set of lent homes to another."""
    decision = Decision(targets=lends(after, borrower=borrower), reason=Reason.LEND_INACTIVE)
    changed = tuple(before) != tuple(after) and not refused
    writer.decided(round(at_s * NS_PER_S), view(before), decision, changed=changed, refused=refused)


def bytes_of_tables(folder: Path) -> dict[str, bytes]:
    return {name: (folder / f"{name}.parquet").read_bytes() for name in TABLES}


def _model(residency: Residency) -> ModelView:
    shape = ModelShape(
        name="m",
        n_layers=_LAYERS,
        hidden=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=1,
        ffn=1,
        vocab=1,
        gated_mlp=False,
        layer_bytes=1,
        total_bytes=_LAYERS,
        max_context_tokens=1,
    )
    return ModelView(
        shape=shape,
        residency=residency,
        priority=None,
        is_active=False,
        last_active_step=None,
        n_waiting=0,
        n_running=0,
        n_base_blocks=0,
        n_blocks=0,
        n_free_blocks=0,
        blocks_per_home=(0, 0),
        fetch_ns=1,
        decode_ns=None,
        rest_ns=0,
        prefill_ns=None,
        weights_ns=1,
        block_bytes=1,
    )

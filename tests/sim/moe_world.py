"""Sessions served by Qwen3-Next-80B-A3B on two simulated H100, with little room for KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.engine import Engine, Outcome
from policies.journal import GapCause, HbmUse
from policies.lane import Lane, TrueLengths
from policies.lru_experts import LruExperts
from policies.memory.ledger import Ledger
from policies.moe_setup import ServedMoe, open_moe
from policies.policy import Policy
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.serving.tenancy import TemporalSharing
from policies.setup import Serving
from policies.types import MIB, HardwareProfile, LinkProfile
from policies.vamp import Vamp
from policies.view import MemoryView
from sim.moe_factory import moe_compute, open_moe_backend
from tests.sim.test_moe_model_files import read
from tests.sim.test_moe_roofline import read_ranks
from traces.sessions.closed_loop import ClosedLoop
from traces.sessions.sessions import Session

CONF = Path(__file__).parents[2] / "conf"
SHARE = 0.9
SERVING = Serving(scheduler="vllm_v1", max_num_seqs=32, chunked_prefill=True, prefix_caching=True)


@dataclass(slots=True)
class Log:
    """A journal that keeps everything in memory; ``check`` is called after every change and step."""

    ledger: Ledger
    pages: int
    finished: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    decisions: list[tuple[int, MemoryView, Decision]] = field(default_factory=list[tuple[int, MemoryView, Decision]])
    n_preempted: int = 0
    n_steps: int = 0
    n_submissions: int = 0
    stall_ns: int = 0

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        del lane, now_ns, scheduler
        self.n_preempted += len(step.preempted)

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        del lane, batch
        self.n_steps += len(report.ends_ns)
        self.n_submissions += 1
        self.stall_ns += sum(report.stall_ns)
        assert sum(self.ledger.holdings().values()) == self.pages

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        pass

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        del lane, now_ns, scheduler
        for seq in seqs:
            request = seq.request
            facts = seq.first_token_ns, seq.finish_ns, seq.n_output, seq.n_hit_tokens, seq.n_preemptions
            self.finished.append((request.request_id, request.arrival_ns, *facts))

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        assert not refused
        if changed:
            self.decisions.append((now_ns, view, decision))

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        del now_ns
        assert all(use.lent_bytes >= 0 for use in uses)


@dataclass(slots=True, kw_only=True)
class Served:
    """What came of a run."""

    outcome: Outcome
    end_ns: int
    log: Log
    ledger: Ledger
    lane: Lane


def serve(
    policy: Policy,
    sessions: Iterable[Session],
    *,
    kv_mib: int,
    n_at_once: int | None = None,
    serving: Serving = SERVING,
    leaps: bool = True,
) -> Served:
    """Serve sessions in a closed loop to their end."""
    shape, ranks = read("qwen3_next_80b_a3b"), read_ranks("h100_nvl_x2")
    machine: Any = OmegaConf.to_container(OmegaConf.load(CONF / "hardware" / "h100_nvl.yaml"))
    hardware = _hardware(machine)
    layout = shape.experts(ranks.n_ranks, hardware.page_bytes)
    taken = layout.total_bytes + shape.rest_bytes(ranks.n_ranks) + kv_mib * MIB
    served = ServedMoe(
        shape=shape,
        n_ranks=ranks.n_ranks,
        share=SHARE,
        activation_bytes=int(SHARE * hardware.hbm_bytes) - taken - 4 * MIB,
    )
    ledger, lane = open_moe(served, hardware, serving, policy)
    routing = {"kind": "uniform"}
    compute = moe_compute(
        shape,
        hardware,
        roofline=machine["roofline"],
        flops_per_s=machine["flops_per_s"],
        tables=None,
        ranks=asdict(ranks),
        routing=routing,
    )
    backend = open_moe_backend(
        compute,
        shape,
        hardware,
        compute_slowdown=0.0,
        ranks=asdict(ranks),
        routing=routing,
        away=policy.cap if isinstance(policy, LruExperts) else None,
    )
    loop = ClosedLoop(sessions, max_context_tokens=shape.max_context_tokens, n_at_once=n_at_once)
    if isinstance(policy, Vamp) and policy.foresight and lane.asking is not None:
        lane.asking.foresees = loop.is_continued
    log = Log(ledger, hardware.hbm_bytes // hardware.page_bytes)
    engine = Engine(
        lanes=[lane],
        truth=TrueLengths(),
        policy=policy,
        tenancy=TemporalSharing(quantum_s=1.0),
        ledger=ledger,
        backend=backend,
        hardware=hardware,
        journal=log,
        leaps=leaps,
        use_every_ns=None,
        follow=loop.follow,
    )
    outcome = engine.run(loop.first_turns())
    return Served(outcome=outcome, end_ns=backend.now_ns, log=log, ledger=ledger, lane=lane)


def _hardware(values: Any) -> HardwareProfile:
    link = {key: value for key, value in values["link"].items() if key.endswith("bytes_per_s")}
    fields = {key: values[key] for key in ("name", "hbm_bytes", "hbm_bytes_per_s", "page_bytes")}
    return HardwareProfile(link=LinkProfile(**link), **fields)

"""All that a decision may see: what a real server knows, and nothing that it cannot know.

Read only; those of which many are made are not frozen, and have constructors that compile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from policies.memory.experts import ExpertResidency
from policies.memory.residency import Residency, Target
from policies.shortage import Shortage
from policies.types import HardwareProfile, ModelShape


class Ask(Enum):
    """Why the engine asks for a decision."""

    RUNNING_SHORT = "a running request has no block for its next token"
    WAITING_SHORT = "the head of the waiting queue does not fit"
    START = "nothing has been served yet"
    EVICTION = "an allocation would evict cached blocks"
    EASE = "a step boundary while something is lent"
    ACTIVATE = "another model takes its turn"
    IDLE = "no model has work"

    __hash__ = object.__hash__  # as each is one object; ``Enum``'s own is Python, and asked ten times a question


@dataclass(slots=True, init=False, unsafe_hash=True)
class RangeView:
    """One lent home, or the last increment of experts (``home``), as a KV range of its borrower.

    Attributes:
        n_blocks: blocks of the borrower that it holds.
        n_referenced: of these, blocks that a live request uses.
        is_on_host: it is a unit of KV cache in host memory instead (``home`` counts on from those of the model).
    """

    lender: int
    home: int
    borrower: int
    n_blocks: int
    n_referenced: int
    is_on_host: bool

    def __init__(
        self, lender: int, home: int, borrower: int, n_blocks: int, n_referenced: int, is_on_host: bool = False
    ) -> None:
        self.lender = lender
        self.home = home
        self.borrower = borrower
        self.n_blocks = n_blocks
        self.n_referenced = n_referenced
        self.is_on_host = is_on_host


@dataclass(frozen=True, slots=True)
class RequestView:
    """A running request. ``max_output_tokens`` is declared; its true length is not here."""

    request_id: int
    n_prompt_tokens: int
    n_output_tokens: int
    max_output_tokens: int
    ranges: tuple[tuple[int, int], ...]
    """(lender, home) of each lent range in which it has a block."""


@dataclass(slots=True, init=False, unsafe_hash=True)
class ModelView:
    """One model as the server measures it.

    Attributes:
        priority: scheduler priority, a higher number runs first; ``None`` if the tenancy has none.
        is_active: it runs now (temporal sharing: the one whose turn it is).
        last_active_step: the engine's step count when it last ran, ``None`` if it never has.
        n_base_blocks, n_blocks, n_free_blocks: its KV blocks: at home, with lent ranges, unreferenced.
        blocks_per_home: KV blocks that one home of each model would give it, by lender.
        fetch_ns: transfer time of one of its layers over an idle link (the paper's T_T).
        decode_ns: device compute time of one decode step at the present batch size, fetch
            waits excluded (the paper's T_compute); ``None`` until measured.
        rest_ns: the part of a decode step outside the layers (head, sampling, host).
        prefill_ns: device compute time of the prefill of one prompt of mean length; ``None`` until measured.
        weights_ns: lower bound of both: its layers read once from HBM.
        block_bytes: K and V of one of its blocks.
        requests: running requests; empty unless the policy asks for them.
        n_empty_blocks: of the unreferenced blocks, those without content, where the scheduler tells them apart.
        experts: how many of its experts are offloaded, if the policy may offload any.
    """

    shape: ModelShape
    residency: Residency
    priority: int | None
    is_active: bool
    last_active_step: int | None
    n_waiting: int
    n_running: int
    n_base_blocks: int
    n_blocks: int
    n_free_blocks: int
    blocks_per_home: tuple[int, ...]
    fetch_ns: int
    decode_ns: int | None
    rest_ns: int
    prefill_ns: int | None
    weights_ns: int
    block_bytes: int
    requests: tuple[RequestView, ...]
    n_empty_blocks: int
    experts: ExpertResidency | None

    def __init__(
        self,
        shape: ModelShape,
        residency: Residency,
        priority: int | None,
        is_active: bool,
        last_active_step: int | None,
        n_waiting: int,
        n_running: int,
        n_base_blocks: int,
        n_blocks: int,
        n_free_blocks: int,
        blocks_per_home: tuple[int, ...],
        fetch_ns: int,
        decode_ns: int | None,
        rest_ns: int,
        prefill_ns: int | None,
        weights_ns: int,
        block_bytes: int,
        requests: tuple[RequestView, ...] = (),
        n_empty_blocks: int = 0,
        experts: ExpertResidency | None = None,
    ) -> None:
        self.shape = shape
        self.residency = residency
        self.priority = priority
        self.is_active = is_active
        self.last_active_step = last_active_step
        self.n_waiting = n_waiting
        self.n_running = n_running
        self.n_base_blocks = n_base_blocks
        self.n_blocks = n_blocks
        self.n_free_blocks = n_free_blocks
        self.blocks_per_home = blocks_per_home
        self.fetch_ns = fetch_ns
        self.decode_ns = decode_ns
        self.rest_ns = rest_ns
        self.prefill_ns = prefill_ns
        self.weights_ns = weights_ns
        self.block_bytes = block_bytes
        self.requests = requests
        self.n_empty_blocks = n_empty_blocks
        self.experts = experts


@dataclass(slots=True, init=False, unsafe_hash=True)
class MemoryView:
    """What a policy decides from.

    Attributes:
        step: steps done so far by all models; the only notion of time.
        ask: why the engine asks.
        asker: the model that is short, or that runs.
        n_short_blocks: blocks the asker lacks, 0 unless it is short.
        ranges: every lent range.
        policy_memory: what the last decision of this policy wanted to remember.
        refused: the targets that did not fit when last tried, ``None`` if they did.
        shortage: what an allocation lacks, if the question is whether to evict for it.
    """

    step: int
    ask: Ask
    asker: int
    n_short_blocks: int
    hardware: HardwareProfile
    models: tuple[ModelView, ...]
    ranges: tuple[RangeView, ...]
    policy_memory: object | None  # mypyc knows no bare ``object`` here
    refused: tuple[Target, ...] | None
    shortage: Shortage | None

    def __init__(
        self,
        step: int,
        ask: Ask,
        asker: int,
        n_short_blocks: int,
        hardware: HardwareProfile,
        models: tuple[ModelView, ...],
        ranges: tuple[RangeView, ...],
        policy_memory: object | None = None,
        refused: tuple[Target, ...] | None = None,
        shortage: Shortage | None = None,
    ) -> None:
        self.step = step
        self.ask = ask
        self.asker = asker
        self.n_short_blocks = n_short_blocks
        self.hardware = hardware
        self.models = models
        self.ranges = ranges
        self.policy_memory = policy_memory
        self.refused = refused
        self.shortage = shortage

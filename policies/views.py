"""The models and lent ranges that a policy is shown; what has not changed since is the same object as before."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from policies.lane import Lane
from policies.memory.ledger import Ledger
from policies.memory.residency import Residency
from policies.serving.free_blocks import LentRange
from policies.serving.sequence import State
from policies.types import NS_PER_S, HardwareProfile
from policies.view import ModelView, RangeView, RequestView


class Views:
    """Shows lanes and ledger as they are.

    Args:
        rates: bytes/s of HBM that each model has when it is alone.
        shows_requests: the policy asks for running requests.
    """

    def __init__(
        self, lanes: Seq[Lane], ledger: Ledger, hardware: HardwareProfile, rates: Seq[int], *, shows_requests: bool
    ) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._hardware = hardware
        self._rates = rates
        self._shows_requests = shows_requests
        self._has_experts = any(experts is not None for experts in ledger.experts)
        self._fetches_ns = [hardware.link.fetch_ns(lane.shape.layer_bytes) for lane in lanes]
        self._weights_ns = [
            lane.shape.n_layers * lane.shape.layer_bytes * NS_PER_S // rate
            for lane, rate in zip(lanes, rates, strict=True)
        ]
        self._models: dict[int, tuple[tuple[object, ...], ModelView]] = {}  # by lane: what may change, and its view
        self._residencies: tuple[Residency, ...] = ()  # for which the ranges were looked up
        self._lent: list[LentRange] = []
        self._ranges: list[RangeView] = []

    def models(self, active: frozenset[int]) -> tuple[ModelView, ...]:
        """Every model, some of which run now."""
        return tuple(self._model(lane, lane.index in active) for lane in self._lanes)

    def ranges(self) -> tuple[RangeView, ...]:
        """Every lent range: by lender, in the order in which they were lent; then the last increments of experts."""
        if self._residencies is not self._ledger.residencies:
            self._look_up_ranges()
        for nth, lent in enumerate(self._lent):
            if lent.n_used != self._ranges[nth].n_referenced:
                self._ranges[nth] = _with_referenced(self._ranges[nth], lent.n_used)
        return (*self._ranges, *self._last_increments()) if self._has_experts else tuple(self._ranges)

    def _last_increments(self) -> Iterator[RangeView]:
        """Of every model whose experts serve as KV cache the increment that would come back first."""
        for lane, experts in zip(self._lanes, self._ledger.experts, strict=True):
            if experts is not None and experts.n_increments and lane.expert_kv is not None:
                model, last = lane.index, experts.n_increments - 1
                _, n_blocks = lane.expert_kv.range_of(experts, last)
                yield RangeView(model, last, model, n_blocks, lane.scheduler.pool.n_referenced((model, last)))

    def _look_up_ranges(self) -> None:
        self._residencies = self._ledger.residencies
        self._lent, self._ranges = [], []
        for lender, residency in enumerate(self._residencies):
            for loan in residency.loans:
                lane = self._lanes[loan.borrower]
                lent = lane.scheduler.pool.lent_range((lender, loan.home))
                n_blocks = lane.layout.blocks_per_home[lender]
                self._lent.append(lent)
                self._ranges.append(RangeView(lender, loan.home, loan.borrower, n_blocks, lent.n_used))
            self._look_up_units(lender, residency)

    def _look_up_units(self, model: int, residency: Residency) -> None:
        on_host = residency.on_host
        for unit in range(0 if on_host is None else on_host.n_units):
            assert on_host is not None
            home = residency.n_layers + unit
            lent = self._lanes[model].scheduler.pool.lent_range((model, home))
            self._lent.append(lent)
            self._ranges.append(RangeView(model, home, model, on_host.unit_blocks, lent.n_used, is_on_host=True))

    def _model(self, lane: Lane, is_active: bool) -> ModelView:
        scheduler, estimates, residency = lane.scheduler, lane.estimates, self._ledger.residencies[lane.index]
        pool, n_running = scheduler.pool, scheduler.n_running
        requests = tuple(_requests(lane)) if self._shows_requests else ()
        n_waiting, n_blocks, n_free, prefill_ns = scheduler.n_waiting, pool.n_blocks, pool.n_free, estimates.prefill_ns
        n_empty, experts = lane.asking.pool.n_empty if lane.asking else 0, self._ledger.experts[lane.index]
        decode_ns, rest_ns = estimates.decode_ns(n_running), estimates.rest_ns(n_running)
        facts = (
            residency, is_active, lane.last_active_step, n_waiting, n_running, n_blocks, n_free,
            decode_ns, rest_ns, prefill_ns, requests, n_empty, experts,
        )  # fmt: skip
        seen = self._models.get(lane.index)
        if seen is not None and seen[0] == facts:
            return seen[1]
        view = ModelView(
            shape=lane.shape,
            residency=residency,
            priority=lane.priority,
            is_active=is_active,
            last_active_step=lane.last_active_step,
            n_waiting=n_waiting,
            n_running=n_running,
            n_base_blocks=pool.n_base,
            n_blocks=n_blocks,
            n_free_blocks=n_free,
            blocks_per_home=lane.layout.blocks_per_home,
            fetch_ns=self._fetches_ns[lane.index],
            decode_ns=decode_ns,
            rest_ns=rest_ns,
            prefill_ns=prefill_ns,
            weights_ns=self._weights_ns[lane.index],
            block_bytes=lane.block_bytes,
            requests=requests,
            n_empty_blocks=n_empty,
            experts=experts,
        )
        self._models[lane.index] = facts, view
        return view


def _with_referenced(view: RangeView, n_referenced: int) -> RangeView:
    return RangeView(view.lender, view.home, view.borrower, view.n_blocks, n_referenced, view.is_on_host)


def _requests(lane: Lane) -> Iterator[RequestView]:
    pool = lane.scheduler.pool
    for seq in lane.scheduler.live():
        if seq.state is not State.RUNNING:
            continue
        homes = {pool.range_of(block) for block in seq.blocks} - {None}
        yield RequestView(
            request_id=seq.request.request_id,
            n_prompt_tokens=seq.request.n_prompt_tokens,
            n_output_tokens=seq.n_output,
            max_output_tokens=seq.request.max_output_tokens,
            ranges=tuple(sorted(home for home in homes if home is not None)),
        )

"""The simulated world for one mixture-of-experts model on tensor-parallel ranks, of which one stands for all."""

from __future__ import annotations

from policies.backend import Batch, Change, StepReport
from policies.memory.experts import Offload, Reload
from policies.types import NS_PER_S, Work, one_token_later
from sim.compute.moe import MoeCompute
from sim.on_demand import OnDemandExperts
from sim.staging import StagedExperts
from sim.under_way import UnderWay


class MoeBackend:
    """Carries out steps and moves of experts as time. Ranks do the same at the same time; one is counted.

    With a scheduler that composes ahead, the host works beside the device: it costs nothing but in the first step.

    Args:
        compute: compute times of a rank.
        staged: its experts and the link over which they come.
        group_bytes, group_shards: of a group of experts.
        n_moe_layers: layers with experts.
        reload_bytes_per_s: bandwidth at which experts come back to stay.
        on_demand: fetches experts after routing; then none is staged.
    """

    def __init__(
        self,
        compute: MoeCompute,
        staged: StagedExperts,
        *,
        group_bytes: int,
        group_shards: int,
        n_moe_layers: int,
        reload_bytes_per_s: int,
        on_demand: OnDemandExperts | None = None,
    ) -> None:
        self._compute = compute
        self._staged = staged
        self._group_bytes = group_bytes
        self._group_shards = group_shards
        self._shards = [0] * n_moe_layers
        self._reload_bytes_per_s = reload_bytes_per_s
        self._on_demand = on_demand
        self._now_ns = 0
        self._reload_ns = 0
        self._under_way = UnderWay()

    @property
    def now_ns(self) -> int:
        """The present."""
        return self._now_ns

    def apply(self, change: Change) -> None:
        """Move boundaries for the steps that are submitted from now on; experts that come back delay the next one.

        Raises:
            ValueError: layers would move.
        """
        for op in change.ops:
            match op:
                case Offload(_, _, groups):
                    self._move(groups, self._group_shards)
                case Reload(_, _, groups):
                    self._move(groups, -self._group_shards)
                    self._reload_ns += -(-len(groups) * self._group_bytes * NS_PER_S // self._reload_bytes_per_s)
                case _:
                    raise ValueError(f"{type(op).__name__}: only experts move here")
        if change.ops:
            self._staged.set_regions(self._shards)

    def _move(self, groups: tuple[tuple[int, int], ...], n_shards: int) -> None:
        for layer, _ in groups:
            self._shards[layer] += n_shards

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Work out when the steps end.

        Raises:
            ValueError: the lane is busy, or a batch with prefill tokens would repeat.
        """
        is_behind = bool(self._under_way)
        start_ns = self._under_way.begin(lane, batch, n_steps, n_ahead, self._now_ns)
        host_ns = 0 if is_behind else self._compute.host_ns(batch.work)
        self._under_way.put(self._steps(lane, batch.work, n_steps, start_ns, stop_ns, (host_ns, not n_ahead)))

    def advance(self, until_ns: int | None) -> StepReport | None:
        """Go on to the end of what was submitted, else to ``until_ns``.

        Raises:
            ValueError: nothing is in flight and no time is given.
        """
        report = self._under_way.take(until_ns)
        self._now_ns = report.ends_ns[-1] if report is not None else max(self._now_ns, until_ns or 0)
        return report

    def landed(self) -> tuple[tuple[int, int], ...]:
        """No layer is ever loaded."""
        return ()

    def _steps(
        self, lane: int, work: Work, n_steps: int, start_ns: int, stop_ns: int, host: tuple[int, bool]
    ) -> StepReport:
        """Run the steps one after the other; ``host``: its time in the first, and whether it is spent in each."""
        (before_ns, in_each), head_ns = host, self._compute.head_ns(work)
        remap_ns, self._reload_ns = self._reload_ns, 0
        now_ns = start_ns + remap_ns
        ends_ns, compute_ns, stall_ns, rest_ns = list[int](), list[int](), list[int](), list[int]()
        while len(ends_ns) < n_steps and (not ends_ns or self._under_way.goes_on(start_ns, ends_ns, stop_ns)):
            layers = self._compute.layers(work)
            now_ns, waited_ns = self._staged.step(now_ns, layers, before_ns, head_ns)
            if self._on_demand is not None:
                waited_ns = self._on_demand.stall_ns(work.n_tokens)
                now_ns += waited_ns
            ends_ns.append(now_ns)
            compute_ns.append(sum([times.all_ns for times in layers]))
            stall_ns.append(waited_ns)
            rest_ns.append(before_ns + head_ns)
            work = one_token_later(work)
            before_ns = before_ns if in_each else 0
        return StepReport(lane, start_ns, ends_ns, compute_ns, stall_ns, rest_ns, 0, remap_ns)

"""What became of the arrivals of a workload: nothing is lost without being counted."""

from __future__ import annotations

from dataclasses import dataclass

from policies.types import NS_PER_S


@dataclass(slots=True, kw_only=True)
class ModelCounts:
    """What became of the arrivals of one model: ``n_offered = n_emitted + n_dropped``.

    Attributes:
        name: of the model.
        n_offered: arrivals after scaling, within the duration.
        n_dropped: too long for the context.
        n_clipped: emitted, but shortened to the context.
        n_cut: emitted, but the declared limit stops the output early.
    """

    name: str
    n_offered: int = 0
    n_emitted: int = 0
    n_dropped: int = 0
    n_clipped: int = 0
    n_cut: int = 0


@dataclass(slots=True, kw_only=True)
class WorkloadCounts:
    """What became of the arrivals so far.

    Attributes:
        n_failed_rows: rows in the trace's window without prompt or output tokens: failed
            requests, which are never offered. Known before the stream starts.
        models: one entry for each model.
        last_arrival_ns: of the last request emitted, 0 before the first.
    """

    n_failed_rows: int
    models: list[ModelCounts]
    last_arrival_ns: int = 0

    @property
    def rate_per_s(self) -> float:
        """Requests/s emitted, from 0 to the last; 0 before there are two points in time."""
        n_emitted = sum(model.n_emitted for model in self.models)
        return n_emitted * NS_PER_S / self.last_arrival_ns if self.last_arrival_ns else 0.0

    @property
    def description(self) -> str:
        """The counts in one line, for a person."""
        emitted = ", ".join(f"{model.name} {model.n_emitted}" for model in self.models)
        return (
            f"{sum(model.n_emitted for model in self.models)} requests ({emitted}); left out: "
            f"{self.n_failed_rows} failed rows, {sum(model.n_dropped for model in self.models)} too long; "
            f"clipped: {sum(model.n_clipped for model in self.models)}; "
            f"cut: {sum(model.n_cut for model in self.models)}"
        )

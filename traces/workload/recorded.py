"""The requests of a run that has been, to be served again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policies.types import NS_PER_S, Arrival, Request
from traces.results.folder import RunTables

_NEEDED = (
    "request_id",
    "model",
    "arrival_ns",
    "n_prompt_tokens",
    "n_output_tokens",
    "max_output_tokens",
    "outcome",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Requests with the arrival times and lengths that a run's table has; the stream can be started again.

    Attributes:
        seed: of the run that they were drawn for.
    """

    requests: tuple[Arrival, ...]
    seed: int

    @property
    def description(self) -> str:
        """What they are, for a person."""
        last_ns = self.requests[-1].request.arrival_ns
        return f"{len(self.requests)} requests as they were recorded, until {last_ns / NS_PER_S:.1f} s"

    def arrivals(self) -> Iterator[Arrival]:
        """Start the stream, in order of time; at the same time in the order of their numbers."""
        return iter(self.requests)


def recorded(run: RunTables) -> Recorded:
    """Read the requests of a run. What they said is not recorded, so that no prefix is shared.

    A request that was dropped is taken to have wanted all the tokens that it declared.

    Raises:
        ValueError: there is none, or some had no end, so that their lengths are unknown.
    """
    columns = run.columns("requests", _NEEDED)
    if not len(columns["outcome"]):
        raise ValueError(f"{run.folder} has no request; name the folder of a run that served some")
    ended = np.isin(columns["outcome"], ("finished", "dropped"))
    if not ended.all():
        raise ValueError(f"{run.folder}: {(~ended).sum()} requests had no end, so their lengths are unknown")
    order = np.lexsort((columns["request_id"], columns["arrival_ns"]))
    rows = zip(*(columns[name][order].tolist() for name in _NEEDED), strict=True)
    return Recorded(requests=tuple(_arrival(*row) for row in rows), seed=run.info.seed)


def _arrival(
    request_id: int, model: int, arrival_ns: int, n_prompt: int, n_output: int, max_output: int, outcome: str
) -> Arrival:
    request = Request(
        request_id=request_id,
        model=model,
        arrival_ns=arrival_ns,
        n_prompt_tokens=n_prompt,
        max_output_tokens=max_output,
    )
    return Arrival(request=request, n_output_tokens=n_output if outcome == "finished" else max_output)

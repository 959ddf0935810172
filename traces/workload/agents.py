"""Agents in a row: what one model answers is the prompt of the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from policies.types import Arrival, Request
from traces.workload.lengths import lengths_of
from traces.workload.streams import random_stream
from traces.workload.workload import Workload


@dataclass(slots=True, kw_only=True)
class Agents:
    """Requests to the first model of a mix, and for each of them one to every other model, in their order.

    A request arrives at the next model when the one before has answered all of it. How long every answer of such a
    row is, is drawn when the row begins: it is the same however fast it is served. Request ``k`` of row ``r`` has the
    id ``r * n_models + k``, so that a row can be put together again from the requests of a run.

    Attributes:
        whole: the requests to the first model (``WorkloadSettings.agents``), and the lengths of all; of those behind
            the first only the length of an answer counts. A request that it leaves out for its length ends the row.

    Raises:
        ValueError: the lengths are those of the trace's rows, which know no further models.
    """

    whole: Workload
    _answers: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict[int, tuple[int, ...]])

    def __post_init__(self) -> None:
        if any(each.kind == "file" for each in self.whole.lengths):
            raise ValueError("workload.agents=true: a trace's rows have no lengths for further models; set lengths")

    @property
    def seed(self) -> int:
        """Of its random streams."""
        return self.whole.seed

    @property
    def description(self) -> str:
        """What they are, for a person."""
        names = " to ".join(shape.name for shape in self.whole.shapes)
        return f"{self.whole.description}; each answer is the next prompt: {names}"

    def arrivals(self) -> Iterator[Arrival]:
        """Start over: the requests to the first model, in order of time."""
        self._answers.clear()
        n_models, seed = len(self.whole.shapes), self.whole.seed
        drawn = [
            lengths_of(each, random_stream(seed, "lengths", model)) for model, each in enumerate(self.whole.lengths)
        ]
        for arrival in self.whole.arrivals():
            one = arrival.request
            row = one.request_id * n_models
            rest = tuple(next(pairs)[1] for pairs in drawn[1:] if pairs is not None)
            self._answers[row] = (arrival.n_output_tokens, *rest)
            request = Request(row, 0, one.arrival_ns, one.n_prompt_tokens, one.max_output_tokens)
            yield Arrival(request, arrival.n_output_tokens)

    def follow(self, request: Request, finish_ns: int) -> Iterator[Arrival]:
        """The request to the next model; none behind the last, or if it is left out for its length."""
        row, model = request.request_id - request.model, request.model + 1
        n_prompt_tokens, *answers = self._answers.pop(row)
        if not answers:
            return
        context_tokens = self.whole.shapes[model].max_context_tokens
        fitted = self.whole.settings.limits.fit(n_prompt_tokens, answers[0], context_tokens)
        if fitted is None:
            return
        self._answers[row] = (fitted.n_output_tokens, *answers[1:])
        after = Request(row + model, model, finish_ns, fitted.n_prompt_tokens, fitted.max_output_tokens)
        yield Arrival(after, fitted.n_output_tokens)

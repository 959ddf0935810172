"""How long a step takes on a server whose layers were profiled."""

from __future__ import annotations

from collections.abc import Callable

from policies.backend import Batch
from policies.lane import batch_of
from policies.serving.scheduler import Step
from policies.types import Work, one_token_later
from sim.compute.profile import ProfileModel
from sim.validation.peers import Peers


class ProfiledTime:
    """Step times out of a layer profile (``sim.linear.StepTime``): that of the engine that takes longest.

    Args:
        peers: whose steps these are.
    """

    def __init__(self, model: ProfileModel, n_layers: int, peers: Peers) -> None:
        self._model = model
        self._n_layers = n_layers
        self._peers = peers

    def of_step(self, batch: Batch) -> Callable[[int], int]:
        """How long the step and its repetitions take."""
        parts = self._parts(batch)
        rows = self._model.rows_together([work for work, _ in parts])

        def nth_ns(nth: int) -> int:
            return max(
                self._of_an_engine(one_token_later(work, nth) if nth else work, longest + nth, rows, index)
                for index, (work, longest) in enumerate(parts)
                if work.n_tokens
            )

        return nth_ns

    def _of_an_engine(self, work: Work, longest: int, rows: list[int], index: int) -> int:
        own_first = [rows[index], *rows[:index], *rows[index + 1 :]]
        return self._n_layers * self._model.layer_ns(work, longest, own_first) + self._model.head_ns(work)

    def _parts(self, batch: Batch) -> list[tuple[Work, int]]:
        """What each engine computes, and its longest context."""
        peers = self._peers
        if len(peers.engines) == 1:
            return [(batch.work, max((seq.n_slots for seq in batch.decodes), default=0))]
        parts: list[tuple[Work, int]] = []
        for index in range(len(peers.engines)):
            step = Step(
                prefills=[each for each in batch.prefills if peers.engine_of(each.seq) == index],
                decodes=[seq for seq in batch.decodes if peers.engine_of(seq) == index],
            )
            step.n_context_tokens = sum(seq.n_slots for seq in step.decodes)
            longest = max((seq.n_slots for seq in step.decodes), default=0)
            parts.append((batch_of(step, 0, 1).work, longest))
        return parts

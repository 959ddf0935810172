"""What waits for what, on streams that do everything as late as they may: a wait that lacks shows in the bits."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
import torch
from torch import Tensor

from executor.ranks import lead
from executor.transfer.staging import Staging
from executor.transfer.streams import HostStreams
from tests.executor.moe.stage import Setting, open_stage
from tests.executor.moe.test_exactness import STEPS, resident


class LateStreams(HostStreams):
    """A CPU whose link copies only when the computation waits for it, in the order in which it was asked.

    Marks of the link are negative, so that they are no times.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[tuple[int, Tensor, Tensor]] = deque()
        self._n = 0

    def fetch(self, to: Tensor, source: Tensor, after: int | None = None) -> int:
        del after
        self._n += 1
        self._queue.append((-self._n, to, source))
        return -self._n

    def hold(self, until: int) -> None:
        while self._queue and self._queue[0][0] >= until:
            _, to, source = self._queue.popleft()
            to.copy_(source)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lead, "HostStreams", LateStreams)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("n_increments", [1, 3, 6])
def test_experts_wait_for_what_is_staged_of_them(n_increments: int) -> None:
    expected = resident("memfd")
    with open_stage(Setting()) as stage:
        stage.move_to(n_increments)
        for rows, hidden in zip(STEPS, expected, strict=True):
            assert torch.equal(stage.run(rows), hidden)


@pytest.mark.usefixtures("late")
def test_steps_wait_for_what_a_moved_boundary_asks_for() -> None:
    random, expected = Random(4), resident("memfd")
    with open_stage(Setting()) as stage:
        for rows, hidden in zip(STEPS, expected, strict=True):
            stage.move_to(random.randint(0, 6))
            assert torch.equal(stage.run(rows), hidden)


@pytest.mark.usefixtures("late")
def test_without_its_wait_a_layer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_ahead(_staging: object, _layer: int) -> None:
        pass

    expected = resident("memfd")
    with open_stage(Setting()) as stage:
        stage.move_to(6)
        monkeypatch.setattr(Staging, "enter", go_ahead)
        assert not all(torch.equal(stage.run(rows), hidden) for rows, hidden in zip(STEPS, expected, strict=True))

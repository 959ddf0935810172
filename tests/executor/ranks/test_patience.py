"""While the device is waited for, the other ranks are looked after."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from threading import Event

import pytest
from torch import Tensor

from executor.ranks.commands import Failed, RunStep
from executor.ranks.pipes import LOOK_AFTER_S, Leading, Patience
from executor.ranks.processes import aborted_without
from policies.errors import DeviceFailed


def led(timeout_s: float) -> tuple[Leading, Connection]:
    """The pipe to one other rank, and its end."""
    end, other = multiprocessing.Pipe()
    return Leading([end], timeout_s, lambda _rank: "is gone"), other


def keep_trying(patience: Patience) -> None:
    """Wait for something that never comes."""
    for _ in range(100):
        patience.tried()
        time.sleep(LOOK_AFTER_S)


def test_a_rank_that_says_why_it_failed_is_quoted() -> None:
    leading, other = led(60)
    other.send(Failed("cuMemCreate failed with 2"))
    with pytest.raises(DeviceFailed, match="rank 1: cuMemCreate failed with 2"):
        keep_trying(Patience(leading))


def test_a_rank_that_is_gone_is_noticed_long_before_the_timeout() -> None:
    leading, other = led(60)
    other.close()
    with pytest.raises(DeviceFailed, match="rank 1 is gone; the run cannot go on"):
        keep_trying(Patience(leading))


def test_nothing_can_be_told_to_a_rank_that_is_gone() -> None:
    leading, other = led(60)
    other.close()
    with pytest.raises(DeviceFailed, match="rank 1 is gone"):
        leading.tell(RunStep(0, ()))


def test_a_device_that_does_not_come_on_is_given_up_after_the_time_that_is_set() -> None:
    leading, _other = led(0.02)
    with pytest.raises(DeviceFailed, match=r"has not come on for 0\.02 s: a rank is stuck"):
        keep_trying(Patience(leading))


class Aborted:
    """A group that takes note of its end."""

    def __init__(self) -> None:
        self.is_aborted = Event()

    def sum(self, tensor: Tensor) -> None:
        raise AssertionError(f"nobody sums {tensor}")

    def abort(self) -> None:
        self.is_aborted.set()


def test_the_end_of_a_rank_ends_sums_for_which_the_device_would_wait_for_ever() -> None:
    group, process = Aborted(), multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        with aborted_without([process.sentinel], group):
            assert not group.is_aborted.wait(0.1)
            process.kill()
            assert group.is_aborted.wait(10)
    finally:
        process.kill()
        process.join()


def test_ranks_that_are_told_to_stop_later_abort_nothing() -> None:
    group, process = Aborted(), multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        with aborted_without([process.sentinel], group):
            pass
        process.kill()
        process.join()
        assert not group.is_aborted.wait(0.1)
    finally:
        process.kill()
        process.join()


def test_whatever_is_reached_starts_the_time_anew() -> None:
    leading, _other = led(0.05)
    patience = Patience(leading)
    for _ in range(50):
        patience.tried()
        time.sleep(LOOK_AFTER_S)
        patience.rewarded()

"""What a rank shares with the others: sums, and decisions that all carry out or none."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from executor.ranks.commands import Answer, Failed, Stop, Vote
from executor.ranks.group import Group
from executor.ranks.pipes import Following, Leading
from executor.vmm.driver import DriverError, DriverOutOfMemory
from policies.errors import DeviceFailed, HbmOverdrawn

Done = TypeVar("Done")


class Ranks(Protocol):
    """All ranks, as one of them sees them."""

    @property
    def rank(self) -> int:
        """Its own number."""
        ...

    @property
    def n_ranks(self) -> int:
        """How many there are."""
        ...

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks."""
        ...

    def cast(self, vote: Vote) -> Vote:
        """Vote, and learn the least of all votes."""
        ...


class Leader:
    """Rank 0.

    Attributes:
        pipes: to the others.
    """

    rank = 0

    def __init__(self, pipes: Leading, group: Group) -> None:
        self.pipes, self._group = pipes, group
        self.n_ranks = 1 + len(pipes.ends)

    def sum(self, tensor: Tensor) -> None:
        """Sum up; a rank that died meanwhile is named.

        Raises:
            DeviceFailed: a rank is gone, or does not come.
        """
        try:
            self._group.sum(tensor)
        except torch.AcceleratorError:
            raise  # of the own device
        except RuntimeError as failure:
            self.pipes.hear(Failed)
            raise DeviceFailed(f"the ranks do not come together: {str(failure).splitlines()[0]}") from failure

    @contextmanager
    def ending(self) -> Generator[None]:
        """Tell the others to stop at its end, unless that is an error, and let the own device wait for them no more."""
        try:
            yield
            self.pipes.tell(Stop())
        finally:
            self._group.abort()

    def cast(self, vote: Vote) -> Vote:
        """Count the votes, and tell what they come to."""
        least = min([vote, *self.pipes.hear(Vote)], key=lambda each: each.answer.value)
        self.pipes.tell(least)
        return least


class Follower:
    """Any other rank."""

    def __init__(self, rank: int, n_ranks: int, pipe: Following, group: Group) -> None:
        self.rank, self.n_ranks = rank, n_ranks
        self.pipe, self._group = pipe, group

    def sum(self, tensor: Tensor) -> None:
        """Sum up."""
        self._group.sum(tensor)

    def cast(self, vote: Vote) -> Vote:
        """Send a vote to rank 0, and wait for what it comes to."""
        self.pipe.say(vote)
        least = self.pipe.hear()
        assert isinstance(least, Vote), f"{least} in the midst of a vote"
        return least


class Ballot:
    """The vote of one rank on one thing: once."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.is_cast = False

    def yes(self) -> None:
        """Agree, and wait for the others.

        Raises:
            DriverOutOfMemory: another rank lacks memory.
            DriverError: another rank's device failed.
        """
        self.is_cast = True
        least = self._ranks.cast(Vote(self._ranks.rank, Answer.YES))
        if least.answer is not Answer.YES:
            error = DriverOutOfMemory if least.answer is Answer.NO_MEMORY else DriverError
            raise error(f"rank {least.rank}", least.code, least.why)

    def no(self, failure: Exception) -> None:
        """Refuse; what the others say changes nothing."""
        self.is_cast = True
        answer = Answer.NO_MEMORY if isinstance(failure, HbmOverdrawn | DriverOutOfMemory) else Answer.FAILED
        first = failure.__cause__ if isinstance(failure.__cause__, DriverError) else failure
        code = first.code if isinstance(first, DriverError) else 0
        self._ranks.cast(Vote(self._ranks.rank, answer, code, str(first)))


@contextmanager
def ballot(ranks: Ranks) -> Generator[Ballot]:
    """Vote within it: whoever fails before it has agreed refuses."""
    paper = Ballot(ranks)
    try:
        yield paper
    except (HbmOverdrawn, DriverError, ValueError) as failure:
        if not paper.is_cast:
            paper.no(failure)
        raise
    assert paper.is_cast, "a rank has not voted"


def together(ranks: Ranks | None, work: Callable[[], Done]) -> Done:
    """Do what any rank may refuse, and wait for the others; without ranks just do it.

    Raises:
        HbmOverdrawn: another rank lacks memory.
        DriverError: another rank's device failed.
    """
    if ranks is None:
        return work()
    with ballot(ranks) as vote:
        done = work()
        try:
            vote.yes()
        except DriverOutOfMemory as refused:
            raise HbmOverdrawn(str(refused)) from refused
    return done

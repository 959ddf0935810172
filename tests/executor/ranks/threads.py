"""The other ranks as threads: real sums over gloo and real pipes, with drivers that a test can reach."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

from executor.clock import HostClock
from executor.memory.homes import Homes
from executor.mixture.plan import MoePlan
from executor.mixture.serving import MoeServing, open_moe_serving
from executor.plan import Plan
from executor.ranks.commands import AwaitLoads, Ready
from executor.ranks.follow import follow
from executor.ranks.group import TorchGroup
from executor.ranks.pipes import Following, Leading
from executor.ranks.ranks import Follower, Leader
from executor.serving import Serving, open_serving
from executor.vmm.books import Live
from executor.vmm.faulty import FaultyDriver

WITHIN_S = 30.0


@dataclass(slots=True)
class Other:
    """A rank that is not 0."""

    rank: int
    driver: FaultyDriver
    end: Connection
    staged: Serving | MoeServing | None = None
    failure: BaseException | None = None

    @property
    def homes(self) -> list[Homes]:
        """What its homes serve as."""
        assert isinstance(self.staged, Serving)
        return [self.staged.memory.homes(model) for model in range(len(self.staged.memory.models))]

    @property
    def n_increments(self) -> int:
        """How far its experts are lent."""
        assert isinstance(self.staged, MoeServing)
        return self.staged.memory.experts.n_increments

    def open(self, plan: Plan | MoePlan, ranks: Follower) -> Serving | MoeServing:
        """Open its device."""
        if isinstance(plan, MoePlan):
            return open_moe_serving(self.driver, plan, HostClock(), ranks=ranks, poison=True)
        return open_serving(self.driver, plan, HostClock(), ranks=ranks, poison=True)

    def be(self, plan: Plan | MoePlan, store: Path) -> None:
        """Follow until told to stop."""
        try:
            group = TorchGroup(store, self.rank, plan.n_ranks, "cpu", WITHIN_S)
            ranks = Follower(self.rank, plan.n_ranks, Following(self.end), group)
            with self.open(plan, ranks) as self.staged:
                follow(self.staged, ranks)
        except BaseException as failure:
            self.failure = failure
        finally:
            self.end.close()  # as when a process ends


@dataclass(frozen=True, slots=True)
class Together:
    """Rank 0 and the others."""

    leader: Leader
    others: Sequence[Other]

    def wait(self) -> None:
        """Wait until the others have done what they were told."""
        self.leader.pipes.tell(AwaitLoads(()))
        self.leader.pipes.hear(Ready)


@contextmanager
def open_ranks(plan: Plan | MoePlan, drivers: Sequence[FaultyDriver]) -> Generator[Together]:
    """Start the other ranks, each with its driver; at the end nothing may be left with one."""
    pipes = [multiprocessing.Pipe() for _ in drivers]
    others = [Other(rank, driver, end) for rank, (driver, (_, end)) in enumerate(zip(drivers, pipes, strict=True), 1)]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        threads = [Thread(target=other.be, args=(plan, store), daemon=True) for other in others]
        for thread in threads:
            thread.start()
        leading = Leading([end for end, _ in pipes], WITHIN_S, lambda _rank: "is gone")
        leader = Leader(leading, TorchGroup(store, 0, plan.n_ranks, "cpu", WITHIN_S))
        with leader.ending():
            yield Together(leader, others)
        for thread, other in zip(threads, others, strict=True):
            thread.join(WITHIN_S)
            assert not thread.is_alive()
            assert other.failure is None, other.failure
            assert other.driver.live == Live()
            other.driver.close()

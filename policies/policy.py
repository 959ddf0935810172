"""What every policy is: a pure function from a view to a decision, with its settings."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from policies.decision import Decision
from policies.memory.experts import OffloadCap
from policies.serving.scheduler import Preemption
from policies.view import MemoryView


class Policy(Protocol):
    """Decides who holds which memory. It has no effects, no clock and no randomness.

    Attributes:
        lends: whether it ever moves memory; if not, it is never asked.
        needs_requests: whether it wants the live requests in its views.
        preemption: what the scheduler does with a victim.
        keeps_kv_on_host: whether it has running requests' KV cache in host memory: only the simulator can do that.
    """

    lends: ClassVar[bool]

    @property
    def needs_requests(self) -> bool:
        """See above."""
        ...

    @property
    def preemption(self) -> Preemption:
        """See above."""
        ...

    @property
    def keeps_kv_on_host(self) -> bool:
        """See above."""
        ...

    def decide(self, view: MemoryView) -> Decision:
        """Answer with a target state. The same view gives the same answer."""
        ...


@runtime_checkable
class OffloadsExperts(Protocol):
    """A policy for a mixture-of-experts model. If it lends, it is asked before cached blocks are evicted; if not,
    the experts within its cap have no place in HBM from the start."""

    @property
    def cap(self) -> OffloadCap:
        """How far experts may be offloaded."""
        ...

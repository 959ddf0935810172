"""What rank 0 tells the others, and what they answer. All of it is pickled (``sending.py``) and sent through pipes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from executor.models.step import Row
from policies.memory.ops import Op


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run a step of a model."""

    lane: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Carry out a change, and vote on it."""

    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class AwaitLoads:
    """Answer once these loads, (model, layer), are complete."""

    loads: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SaveBlocks:
    """Copy KV blocks of a model to host memory."""

    lane: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RestoreBlocks:
    """Copy them back."""

    lane: int
    places: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DiscardBlocks:
    """Forget them."""

    lane: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Give everything back and end."""


Command = RunStep | CarryOut | AwaitLoads | SaveBlocks | RestoreBlocks | DiscardBlocks | Stop


class Answer(Enum):
    """How a rank could do what all have to do or none; the worst of them is the least."""

    FAILED = 0
    """Its device failed, or what was asked makes no sense."""
    NO_MEMORY = 1
    """Not now."""
    YES = 2
    """Done, but for what cannot be undone."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The answer of a rank, or of all: then the least of theirs.

    Attributes:
        code: the driver's, of what it refused; 0: it did not.
        why: in words.
    """

    rank: int
    answer: Answer
    code: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank cannot go on; it has ended."""

    why: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The loads that were awaited are complete."""


Told = Command | Vote
"""From rank 0."""

Said = Vote | Failed | Ready
"""To rank 0."""

"""How ranks are sent what ``policies/memory/`` makes: as a class and its fields; compiled ones cannot be pickled.

Processes that run the plain modules understand those that run the compiled ones, and the other way round.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from policies.memory.layout import KvLayout
from policies.memory.ledger import Partition
from policies.memory.ops import Cycle, HoldOnHost, Lend, Load, MoveBlocks, Withdraw
from policies.memory.residency import HostKv

SENT = (KvLayout, Partition, Withdraw, Cycle, Load, Lend, MoveBlocks, HoldOnHost, HostKv)


def allow_sending() -> None:
    """Tell pickle how from now on; again is no different."""
    for kind in SENT:
        copyreg.pickle(kind, _taken_apart)


def _taken_apart(value: object) -> tuple[Any, tuple[type, Mapping[str, object]]]:
    return _made, (type(value), {of.name: getattr(value, of.name) for of in fields(cast("Any", value))})


def _made(kind: type, values: Mapping[str, object]) -> object:
    return kind(**values)

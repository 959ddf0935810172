"""Every policy by its name. Its class is its settings: a plain frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping

from policies.mirage import Mirage
from policies.policy import Policy
from policies.recompute import Recompute
from policies.swap import Swap

POLICIES: Mapping[str, type[Policy]] = {
    "recompute": Recompute,
    "swap": Swap,
    "mirage": Mirage,
}

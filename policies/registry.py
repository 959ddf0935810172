"""Every policy by its name. Its class is its settings: a plain frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping

from policies.lru_experts import LruExperts
from policies.mirage import Mirage
from policies.policy import Policy
from policies.recompute import Recompute
from policies.swap import Swap
from policies.vamp import Vamp

POLICIES: Mapping[str, type[Policy]] = {
    "recompute": Recompute,
    "swap": Swap,
    "mirage": Mirage,
    "vamp": Vamp,
    "lru_experts": LruExperts,
}

"""Every policy by its name. Its class is its settings: a plain frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping

from policies.cpu_attention import CpuAttention
from policies.fixed_share import FixedShare
from policies.lru_experts import LruExperts
from policies.mirage import Mirage
from policies.mirage_cpu import MirageCpu
from policies.on_demand import OnDemand
from policies.pie import Pie
from policies.policy import Policy
from policies.recompute import Recompute
from policies.swap import Swap
from policies.vamp import Vamp

POLICIES: Mapping[str, type[Policy]] = {
    "recompute": Recompute,
    "swap": Swap,
    "mirage": Mirage,
    "mirage_cpu": MirageCpu,
    "pie": Pie,
    "cpu_attention": CpuAttention,
    "on_demand": OnDemand,
    "fixed_share": FixedShare,
    "vamp": Vamp,
    "lru_experts": LruExperts,
}

"""What changing a memory mapping costs at run time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class VmmMode(Enum):
    """How homes change hands: what the driver must do for each."""

    ALIAS = "alias"
    """Nothing: every home is mapped at start-up wherever it may serve."""
    RANGE = "range"
    """One handle a layer: unmap, map and set-access once a home."""
    PAGE = "page"
    """One handle a page: the same for each page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VmmCost:
    """Driver time of unmap + map + set-access, for one layer-sized handle and for one page.

    Raises:
        ValueError: a cost is negative.

    Source: conf/hardware/*.yaml.
    """

    range_ns: int
    page_ns: int

    def __post_init__(self) -> None:
        if self.range_ns < 0 or self.page_ns < 0:
            raise ValueError(f"vmm: range_ns={self.range_ns} and page_ns={self.page_ns} must be >= 0")

    def remap_ns(self, mode: VmmMode, n_homes: int, pages_per_home: int) -> int:
        """Time for which ``n_homes`` homes of a layer each keep the step waiting that needs them."""
        match mode:
            case VmmMode.ALIAS:
                return 0
            case VmmMode.RANGE:
                return n_homes * self.range_ns
            case VmmMode.PAGE:
                return n_homes * pages_per_home * self.page_ns

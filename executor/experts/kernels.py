"""What differs between devices in running experts."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from executor.experts.packs import ExpertTable
from executor.models.moe import Routed
from executor.models.spec import ExpertSpec


class ExpertKernels(Protocol):
    """Runs the experts of a layer over the rows that were routed to them.

    On a GPU it does not wait for the device or look at values on the host, so that it can be captured; the
    result of a row depends on the step alone, never on where experts lie.
    """

    def run(self, hidden: Tensor, routed: Routed, table: ExpertTable, spec: ExpertSpec) -> None:
        """Add what the experts of every row say to the residual stream, in place: (n_rows, hidden)."""
        ...

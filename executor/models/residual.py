"""What a half of a layer adds to the residual stream: whole, or one rank's part of it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from executor.models.spec import SumRanks


def add_projected(hidden: Tensor, inputs: Tensor, weight: Tensor, sum_ranks: SumRanks | None) -> None:
    """Project onto the residual stream, in place.

    Args:
        hidden: (n_rows, hidden).
        weight: (hidden, inputs).
        sum_ranks: where inputs are divided among ranks.
    """
    if sum_ranks is None:
        hidden.addmm_(inputs, weight.t())
        return
    projected = functional.linear(inputs, weight)
    sum_ranks(projected)
    hidden += projected

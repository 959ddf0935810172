"""What a step keeps busy of the GPU, from the roofline that says how long it takes."""

from __future__ import annotations

from policies.types import Work
from sim.compute.roofline import ModelRoofline
from sim.side_by_side.device import ONE, Use

WHOLE = Use(ONE, ONE)


class RooflineDemand:
    """Shares of the time of layers and head, each as a mean over their kernels: a ``Demand``."""

    def __init__(self, roofline: ModelRoofline) -> None:
        self._roofline = roofline

    def layer(self, work: Work) -> Use:
        """In its layers."""
        return _use(self._roofline.layer_busy_ns(work), self._roofline.layer_ns(work))

    def head(self, work: Work) -> Use:
        """Outside of them."""
        return _use(self._roofline.head_busy_ns(work), self._roofline.head_ns(work))


class SliceDemand:
    """All of a slice, which nobody else wants: a ``Demand``."""

    def layer(self, work: Work) -> Use:  # noqa: ARG002
        """In its layers."""
        return WHOLE

    def head(self, work: Work) -> Use:  # noqa: ARG002
        """Outside of them."""
        return WHOLE


def _use(busy_ns: tuple[float, float], alone_ns: int) -> Use:
    compute, hbm = (min(ONE, round(ONE * each / alone_ns)) if alone_ns else 0 for each in busy_ns)
    return Use(compute, hbm)

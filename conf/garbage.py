"""Looking for cycles of garbage seldom: imports, compositions and runs make hardly any, and looking takes 6 %."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

SELDOM = 200_000
"""Objects that are made before garbage is looked for; Python has 700. A start makes 120,000, which stay."""


def collect_seldom() -> None:
    """From now on look hundreds of times less often."""
    gc.set_threshold(SELDOM, *gc.get_threshold()[1:])


def spare_the_rest() -> None:
    """Of what lives now look at nothing any more: the end of the process, which does, would take 0.15 s."""
    gc.freeze()


@contextmanager
def seldom_collected() -> Generator[None]:
    """Look hundreds of times less often until this is left."""
    thresholds = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)

"""Random numbers: every purpose draws from its own stream, so none moves another."""

from __future__ import annotations

from typing import Literal

import numpy as np

Purpose = Literal["arrivals", "lengths", "models", "thinning"]


def random_stream(seed: int, purpose: Purpose, *index: int) -> np.random.Generator:
    """Start the stream of one purpose, or of one model's share in it (``index``).

    Raises:
        ValueError: ``seed`` is negative.
    """
    if seed < 0:
        raise ValueError(f"seed={seed} is negative; give 0 or more")
    return np.random.default_rng([seed, *purpose.encode(), *index])

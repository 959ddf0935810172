"""A long search for what the short one misses: ``pytest tests/engine --hypothesis-profile nightly``."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nightly", deadline=None, max_examples=1000)

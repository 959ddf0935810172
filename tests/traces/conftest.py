from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def published() -> Path:
    """Folder of published traces, beside the repository and no part of it."""
    if not (SHARED / "traces").is_dir():
        pytest.skip("the published traces are not beside the repository")
    return SHARED / "traces"


@pytest.fixture
def awkward() -> Path:
    """Folder of awkward but genuine inputs, beside the repository and no part of it."""
    if not (SHARED / "awkward").is_dir():
        pytest.skip("the awkward inputs are not beside the repository")
    return SHARED / "awkward"

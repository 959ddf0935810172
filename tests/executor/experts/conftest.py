from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob: list[str] = [] if find_spec("torch") and find_spec("triton") else ["test_*.py"]

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob: list[str] = [] if find_spec("torch") else ["test_*.py"]
if not find_spec("transformers"):
    collect_ignore_glob.append("test_hugging_face*.py")

"""The modules that a run spends its time in, as machine code: the same sources, through mypyc.

``python -m sim compile`` (``conf/compiling.py``) puts them into a folder named after all that goes into them. They are
used while that is what it was: an edited file is another name, and Python runs the plain modules again. Results are
the same to the byte. Every process imports this first, so it imports little.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILDS = ROOT / ".compiled"

HOT = (
    "policies/backend.py",
    "policies/decision.py",
    "policies/engine.py",
    "policies/incoming.py",
    "policies/journal.py",
    "policies/lane.py",
    "policies/memory/*.py",
    "policies/progress.py",
    "policies/relief.py",
    "policies/remap/*.py",
    "policies/requests.py",
    "policies/serving/*.py",
    "policies/serving/vllm_v0/*.py",
    "policies/serving/vllm_v1/*.py",
    "policies/side_by_side.py",
    "policies/view.py",
    "policies/views.py",
    "sim/backend.py",
    "sim/compute/roofline.py",
    "sim/link.py",
    "sim/pipeline.py",
    "sim/side_by_side/*.py",
    "traces/workload/emitted.py",
    "traces/results/feed.py",
    "traces/workload/limits.py",
    "traces/results/results.py",
    "traces/results/told.py",
)
PLAIN = frozenset(
    f"policies/{name}.py"
    for name in (
        "memory/experts",
        "serving/histories",
        "serving/tenancy",
    )
)
"""Not what OmegaConf reads, anyone refers to weakly or caches properties: compiled classes have no annotations,
cannot be pickled, know no weak references and cache no properties."""

READ = (
    *HOT,
    *sorted(PLAIN),
    "policies/*.py",
    "sim/compute/base.py",
    "sim/vmm.py",
    "traces/results/*.py",
    "traces/workload/*.py",
    "conf/compiling.py",
)
"""Sources whose declarations the compiled modules were made with."""


def use() -> bool:
    """Let Python find the compiled modules first, if there are any of these sources; whether it does.

    Not where one of the modules is imported already: the two kinds do not go together.
    """
    if not BUILDS.is_dir():
        return False
    build, files = build_of(ROOT), hot(ROOT)
    if not build.is_dir() or any(_name(path) in sys.modules for path in files):
        return False
    sys.path.append(str(build))  # what the modules share
    for folder in sorted({path.parent for path in files}):
        package = import_module(".".join(folder.parts))
        package.__path__.insert(0, str(build / folder))
    return True


def build_of(root: Path) -> Path:
    """Where the modules made of the sources under ``root``, as they are, lie or would lie for this Python."""
    digest = sha256(f"{sys.version} {EXTENSION_SUFFIXES[0]}".encode())
    for path in _matching(root, READ):
        digest.update(path.as_posix().encode())
        digest.update((root / path).read_bytes())
    return root / BUILDS.name / digest.hexdigest()[:16]


def hot(root: Path) -> list[Path]:
    """The sources under ``root`` that are compiled, relative to it."""
    return list(_matching(root, HOT))


def _matching(root: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Sources under ``root``, relative to it and in a fixed order."""
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            relative = path.relative_to(root)
            if path.name != "__init__.py" and (pattern == relative.as_posix() or relative.as_posix() not in PLAIN):
                yield relative


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)

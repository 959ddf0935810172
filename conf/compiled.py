"""The modules that a run spends its time in, as machine code: the same sources, through mypyc.

``python -m sim compile`` puts them into a folder named after all that goes into them. They are used while that is
what it was: an edited file is another name, and Python runs the plain modules again. Results are the same to the byte.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
BUILDS = ROOT / ".compiled"

HOT = (
    "policies/backend.py",
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
        "memory/layout",
        "memory/ledger",
        "memory/ops",
        "memory/residency",
        "serving/histories",
        "serving/tenancy",
    )
)
"""Not what other processes are sent, OmegaConf reads or anyone refers to weakly: compiled classes have no annotations,
cannot be pickled, know no weak references and cache no properties."""

READ = (
    *HOT,
    *sorted(PLAIN),
    "policies/*.py",
    "sim/compute/base.py",
    "sim/vmm.py",
    "traces/results/*.py",
    "traces/workload/*.py",
    "conf/compiled.py",
)
"""Sources whose declarations the compiled modules were made with."""

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(name="hot", packages=[], ext_modules=mypycify(["--config-file=mypy.ini", *{files!r}], opt_level="1"))
"""

MYPY = """
[mypy]
ignore_missing_imports = True
warn_unreachable = True
follow_imports = silent
[mypy-numpy.*]
follow_imports = skip
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``compile``, which takes about a minute; nothing is done for sources that are compiled already.

    Raises:
        Refused: there are arguments, no mypyc or no C compiler, or the folder cannot be written.
    """
    from conf.cli import Refused

    if arguments:
        raise Refused(f"takes no arguments, not {' '.join(arguments)}")
    build, files = build_of(ROOT), [path.as_posix() for path in _matching(ROOT, HOT)]
    if not build.is_dir():
        if find_spec("mypyc") is None:
            raise Refused("mypyc is not installed; pip install -e '.[fast]', or go on without: runs take twice as long")
        print(f"compiling {len(files)} modules, about a minute on two idle cores", flush=True)
        try:
            _build(build, files)
        except subprocess.CalledProcessError as failure:
            last = (failure.stdout.strip() or "no output").splitlines()[-1]
            mend = "install a C compiler and Python's headers, or go on without: runs take twice as long"
            raise Refused(f"{last}; {mend}") from None
        except OSError as error:
            raise Refused(f"cannot write {build}: {error.strerror}; install where you may write") from None
    print(f"{len(files)} modules are machine code; runs use them until a source changes")
    return 0


def use() -> bool:
    """Let Python find the compiled modules first, if there are any of these sources; whether it does.

    Not where one of the modules is imported already: the two kinds do not go together.
    """
    if not BUILDS.is_dir():
        return False
    build, files = build_of(ROOT), list(_matching(ROOT, HOT))
    if not build.is_dir() or any(_name(path) in sys.modules for path in files):
        return False
    sys.path.append(str(build))  # what the modules share
    for folder in sorted({path.parent for path in files}):
        package = import_module(".".join(folder.parts))
        package.__path__.insert(0, str(build / folder))
    return True


def build_of(root: Path) -> Path:
    """Where the modules made of the sources under ``root``, as they are, lie or would lie for this Python."""
    digest = sha256(f"{sys.version} {sys.platform} {platform.machine()}".encode())
    for path in _matching(root, READ):
        digest.update(path.as_posix().encode())
        digest.update((root / path).read_bytes())
    return root / BUILDS.name / digest.hexdigest()[:16]


def _matching(root: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Sources under ``root``, relative to it and in a fixed order."""
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            relative = path.relative_to(root)
            if path.name != "__init__.py" and (pattern == relative.as_posix() or relative.as_posix() not in PLAIN):
                yield relative


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def _build(build: Path, files: Sequence[str]) -> None:
    """Compile a copy of the sources, and move what came of it into place, whole."""
    build.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build.parent) as folder:
        scratch, made = Path(folder, "scratch"), Path(folder, "made")
        for package in ("policies", "sim", "traces"):
            shutil.copytree(ROOT / package, scratch / package, ignore=shutil.ignore_patterns("__pycache__"))
        (scratch / "setup.py").write_text(SETUP.format(files=files), encoding="utf-8")
        (scratch / "mypy.ini").write_text(MYPY, encoding="utf-8")
        command = [sys.executable, "setup.py", "-q", "build_ext", "--parallel", "2", "--build-lib", str(made)]
        subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            made.rename(build)
        except OSError:
            if not build.is_dir():  # else someone else compiled the same sources meanwhile
                raise

"""The modules that a run spends its time in, as machine code: the same sources, through mypyc.

``python -m sim compile`` builds them into a folder of their own, named after the sources. They are used while the
sources are these: an edited file is another name, and Python runs the plain modules again. Results are the same.
"""

from __future__ import annotations

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

HOT = (
    *(f"policies/{name}.py" for name in ("backend", "engine", "journal", "lane", "progress", "relief", "views")),
    *(f"policies/memory/{name}.py" for name in ("ledger", "ops", "residency", "slots")),
    *(f"policies/remap/{name}.py" for name in ("grow", "how_many", "when", "which_layers", "which_model")),
    "policies/serving/[!t]*.py",
    "policies/serving/tokens.py",
    "policies/serving/vllm_v0/*.py",
    *(f"sim/{name}.py" for name in ("backend", "pipeline", "compute/roofline")),
)
"""Not those whose values OmegaConf reads or that are sent to other processes: compiled classes keep no annotations and
cannot be pickled."""

SETUP = """
from mypyc.build import mypycify
from setuptools import setup
setup(name="hot", packages=[], ext_modules=mypycify(["--ignore-missing-imports", *{files!r}], opt_level="2"))
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``compile``; takes half a minute.

    Raises:
        Refused: there are arguments, no mypyc or no C compiler.
    """
    from conf.cli import Refused

    if arguments:
        raise Refused(f"takes no arguments, not {' '.join(arguments)}")
    if find_spec("mypyc") is None:
        raise Refused("mypyc is not installed; pip install -e '.[fast]'")
    place = _place()
    if not place.exists():
        try:
            _build(place)
        except subprocess.CalledProcessError as failure:
            last = (failure.stdout.strip() or "no output").splitlines()[-1]
            raise Refused(f"the C compiler or mypyc failed: {last}; runs go on without") from None
        except OSError as error:
            raise Refused(f"cannot write {place}: {error.strerror}; install where you may write") from None
    print(f"compiled {len(list(_sources()))} modules into {place}; every run uses them until a source changes")
    return 0


def use() -> bool:
    """Let Python find the compiled modules first, if there are any of these sources; whether it does."""
    place = _place()
    is_late = any(name.startswith(("policies.", "sim.")) for name in sys.modules)
    if not place.is_dir() or is_late:
        return False
    sys.path.append(str(place))  # what the modules share
    for folder in sorted({path.parent for path in _sources()}):
        package = import_module(".".join(folder.parts))
        package.__path__.insert(0, str(place / folder))
    return True


def _sources() -> Iterator[Path]:
    for pattern in HOT:
        for path in sorted(ROOT.glob(pattern)):
            if path.name != "__init__.py":
                yield path.relative_to(ROOT)


def _place() -> Path:
    """Where these sources are, or would be, for this Python."""
    digest = sha256(sys.version.encode())
    for path in _sources():
        digest.update((ROOT / path).read_bytes())
    return ROOT / ".compiled" / digest.hexdigest()[:16]


def _build(place: Path) -> None:
    """Compile a copy of the sources, and move what came of it into place, whole."""
    with TemporaryDirectory() as scratch:
        for package in ("policies", "sim", "traces"):
            shutil.copytree(
                ROOT / package, Path(scratch, package), ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        Path(scratch, "setup.py").write_text(SETUP.format(files=[str(path) for path in _sources()]))
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        built = Path(scratch, "built")
        for library in [
            *Path(scratch).glob("*.so"),
            *Path(scratch).glob("policies/**/*.so"),
            *Path(scratch).glob("sim/**/*.so"),
        ]:
            target = built / library.relative_to(scratch)
            target.parent.mkdir(parents=True, exist_ok=True)
            library.rename(target)
        place.parent.mkdir(exist_ok=True)
        shutil.move(built, place)

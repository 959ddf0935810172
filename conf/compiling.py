"""``python -m sim compile``: the hot modules to machine code, the others to Python's byte code."""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from conf.cli import Refused
from conf.compiled import ROOT, build_of, hot

PACKAGES = ("conf", "policies", "sim", "traces")
"""All that a run imports of this program."""

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
    if arguments:
        raise Refused(f"takes no arguments, not {' '.join(arguments)}")
    build, files = build_of(ROOT), [path.as_posix() for path in hot(ROOT)]
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
    for package in PACKAGES:  # Python keeps byte code by itself, unless PYTHONDONTWRITEBYTECODE is set
        compileall.compile_dir(ROOT / package, quiet=2)
    print(f"{len(files)} modules are machine code; runs use them until a source changes")
    return 0


def _build(build: Path, files: Sequence[str]) -> None:
    """Compile a copy of the sources, and move what came of it into place, whole."""
    build.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build.parent) as folder:
        scratch, made = Path(folder, "scratch"), Path(folder, "made")
        for package in ("policies", "sim", "traces"):  # what may import what is compiled, and is not conf
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

"""Which code made a run: its commit and the versions of what it stands on."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from policies import engine

_PACKAGES = ("hbmlab", "simpy", "numpy", "pandas", "pyarrow", "torch")


@cache
def commit() -> str | None:
    """Name the commit of this source tree, with ``-dirty`` if files differ; ``None`` outside a repository.

    As it was when this was first asked: that is the code that runs.
    """
    try:
        _git("ls-files", "--error-unmatch", __file__)  # an installed copy may lie in someone else's repository
        return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """List the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def is_compiled() -> bool:
    """Whether the loop that runs here is machine code: see ``conf/compiled.py``."""
    return not (engine.__file__ or "").endswith(".py")


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return done.stdout

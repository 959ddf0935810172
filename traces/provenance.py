"""Which code made a run: its commit and the versions of what it stands on."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("hbmlab", "simpy", "numpy", "pandas", "pyarrow", "torch")


def commit() -> str | None:
    """Name the commit of this source tree, with ``-dirty`` if files differ; ``None`` outside a repository."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """List the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

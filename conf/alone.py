"""One process at a time in a folder."""

from __future__ import annotations

import errno
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
"""What a file system answers that has no locks."""


@contextmanager
def alone_in(folder: Path) -> Generator[None]:
    """Make the folder and be the only one in it; wait for another process that is, also on another machine.

    The system takes the lock from a process that dies. On a file system without locks, and on Windows, nobody waits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock"
    with path.open("w") as lock:
        _lock(lock)
        yield
        path.unlink(missing_ok=True)  # only after success: who comes now finds the work done, with or without a lock


def _lock(file: IO[str]) -> None:
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise

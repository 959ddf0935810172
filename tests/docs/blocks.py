"""Code blocks of a Markdown document, with what a comment above them says.

::

    <!-- file: PATH -->        the block is the content of this file
    <!-- not run: REASON -->   it needs a GPU, the network, a cluster or minutes

Any other ``sh`` or ``python`` block is run; ``text`` is what a program says, or a picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)$")
_MARK = re.compile(r"^<!-- (file|not run): (.+) -->$")

RUN = frozenset({"sh", "python"})
TOLD = frozenset({"text"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One code block.

    Attributes:
        line: of its first line of code, from 1.
        file: what it is the content of, ``None`` if it is no file.
        not_run: why it is not run, ``None`` if it is.
    """

    line: int
    language: str
    code: str
    file: str | None
    not_run: str | None


def blocks(document: Path) -> Iterator[Block]:
    """Find the blocks of a document, in order."""
    lines = document.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        mark = _MARK.match(lines[number - 1]) if number else None
        end = lines.index("```", number + 1)
        yield Block(
            line=number + 2,
            language=fence[1],
            code="\n".join(lines[number + 1 : end]) + "\n",
            file=mark[2] if mark and mark[1] == "file" else None,
            not_run=mark[2] if mark and mark[1] == "not run" else None,
        )
        number = end + 1

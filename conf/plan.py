"""``python -m sim plan``: does lending pay with these models, this traffic and this machine, and what binds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from conf.cli import Refused
from conf.mistakes import one_line
from conf.planning.ask import question


def main(arguments: Sequence[str]) -> int:
    """Carry out ``plan``.

    Raises:
        Refused: the question is wrong or cannot be answered, or the answer cannot be written.
    """
    asked = question(arguments)
    from conf.planning.answer import Planner  # numpy, and all that runs: not for --help
    from conf.planning.document import document
    from conf.planning.page import page
    from conf.planning.screen import screen

    try:
        answer = Planner(asked).answer()
    except (ValueError, HydraException, OmegaConfBaseException, YAMLError) as mistake:
        raise Refused(one_line(mistake)) from None
    told = [screen(answer)]  # after the files, which stay even if nobody reads on
    if asked.json is not None:
        told.append(_write(asked.json, json.dumps(document(answer), indent=2) + "\n"))
    if asked.report is not None:
        told.append(_write(asked.report, page(answer)))
    print("\n".join(told))
    return 0


def _write(path: Path, text: str) -> str:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}; name another file") from None
    return f"wrote {path}"

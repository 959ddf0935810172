"""An experiment by its name: composed, run as far as its runs are not there, drawn, and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from conf.build import Experiment, build
from conf.mistakes import one_line
from conf.paper.score import Told


def composed(name: str, overrides: Sequence[str] = ()) -> Experiment:
    """Compose an experiment of ``conf/experiment`` and check its runs.

    Raises:
        ValueError: it, or a change of it, is faulty.
    """
    import_module("conf.app")  # stores the schema
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(version_base="1.3", config_module="conf"):
            cfg: Any = compose("config", overrides=[f"+experiment={name}", "output.folder=''", *overrides])
            return build(cfg)
    except (HydraException, OmegaConfBaseException) as mistake:
        raise ValueError(one_line(mistake)) from None


def collect(name: str, root: Path, overrides: Sequence[str] = ()) -> Told:
    """Carry an experiment out in ``root/name``, quietly. Runs that are there complete are not done again.

    Raises:
        ValueError, Stuck: as ``conf.compare.run``.
    """
    from conf import compare

    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    experiment = composed(name, overrides)
    with redirect_stdout(StringIO()):
        return compare.run(experiment, folder)

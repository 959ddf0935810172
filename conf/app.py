"""The run command: Hydra composes an experiment, ``conf/build.py`` checks it, ``conf/compare.py`` carries it out.

This module is not ``__main__``: launchers that start processes find ``app`` by its name.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any, cast

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from conf.build import build, schema
from conf.cli import Refused
from conf.mistakes import one_line
from policies.errors import DeviceFailed, Stuck
from policies.registry import POLICIES
from traces.results.provenance import commit

ALTERNATIVES = frozenset({"-m", "--multirun", "-c", "--cfg", "-i", "--info"})
"""Hydra's flags of which at most one may be given."""

UNWRITABLE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EEXIST}
)
"""Why a folder for results could not be made or written."""

HELP = f"""usage: python -m sim run [+experiment=NAME] [KEY=VALUE ...] [-m] [--cfg job]

  python -m sim run +experiment=c1                   an experiment
  python -m sim run +experiment=c1 lengths=alpaca    with other lengths; lengths=[alpaca,sharegpt] runs with each
  python -m sim run +experiment=c1 +grid.seed=[0,1]  with each seed; +grid.KEY=[...] +grid.KEY=[...] combines values
  python -m sim run +experiment=c1 -m mix=c1,c2      an experiment for each choice of a group
  python -m sim run +experiment=c1 --cfg job         print the configuration, every key and its value
  python -m sim run --config-dir DIR +experiment=X   an experiment of your own: DIR/experiment/X.yaml
  python -m executor run +experiment=exec_tiny       on a real device: a CPU (backend=memfd) or a GPU (backend=cuda)

Choices, GROUP=NAME (an experiment: +experiment=NAME):
$APP_CONFIG_GROUPS
Systems, compare=[NAME,...]: {", ".join(POLICIES)}, and the experiment's variants
"""

# Here and not in a function, so that a process that loads ``app`` knows the schema, too.
ConfigStore.instance().store(name="schema", node=schema())
ConfigStore.instance().store(group="hydra/help", name="run", node={"app_name": "hbmlab", "template": HELP})


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def app(cfg: DictConfig) -> None:
    """Run the experiment that ``cfg`` describes.

    Raises:
        Refused: the configuration is not one that can run, or a run could not go on.
    """
    try:
        experiment = build(cfg)
    except (ValueError, OmegaConfBaseException) as mistake:
        raise Refused(one_line(mistake)) from None
    from conf import compare  # pandas and matplotlib: not for --help

    try:
        compare.run(experiment, Path(HydraConfig.get().runtime.output_dir))
    except (ValueError, Stuck, DeviceFailed) as failure:
        raise Refused(f"{one_line(failure)}; what there is of the results is marked incomplete") from failure


def main(arguments: Sequence[str]) -> int:
    """Carry out ``run``.

    Raises:
        Refused: the command line or the configuration is wrong, or results cannot be written.
    """
    chosen = [argument for argument in arguments if argument in ALTERNATIVES]
    if len(chosen) > 1:
        raise Refused(f"{' and '.join(chosen)} exclude each other; give one of them")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    Thread(target=commit, daemon=True).start()  # git works while Hydra composes
    is_plain = not any(word.startswith(("-", "hydra.")) for word in arguments)
    sys.argv[1:] = flags_last(arguments)  # Hydra takes its arguments only from there
    try:
        with _known_to_be_no_sweep() if is_plain else nullcontext():
            app()
    except (HydraException, OmegaConfBaseException, YAMLError) as mistake:
        raise Refused(one_line(mistake)) from None
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        mend = "choose another folder with output.root=FOLDER"
        raise Refused(f"cannot write {error.filename}: {error.strerror}; {mend}") from None
    return 0


def _by_its_flags(_: Hydra, config_name: str | None, overrides: list[str]) -> None:
    """Name no mode, so that Hydra goes by its flags."""


@contextmanager
def _known_to_be_no_sweep() -> Generator[None]:
    """Spare Hydra 1.3 composing everything once more only to learn its mode: a fifth of the time before a run."""
    asked = Hydra.get_mode
    Hydra.get_mode = cast("Any", _by_its_flags)
    try:
        yield
    finally:
        Hydra.get_mode = asked


def flags_last(arguments: Sequence[str]) -> list[str]:
    """Sort Hydra's flags and their values behind the overrides: Hydra 1.3 refuses them in between (hydra#3053)."""
    return sorted(arguments, key=lambda word: word.startswith("-") or not ("=" in word or word.startswith("~")))

"""A run that has been, put together once more from its run.json: other settings, the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.build import checked_run, configured, held_to_schema
from conf.mistakes import one_line
from conf.run import Requests, Run
from traces.results.folder import RunInfo

ONE_RUN: Mapping[str, object] = {
    "name": "again",
    "grid": {},
    "variants": {},
    "rates": [],
    "rates_by_lengths": {},
    "output": {"root": "", "folder": "", "figures": False, "page": False},
    "timeline": {"window": []},
    "loads": [],
    "saturations": {},
    "points": [],
    "figure": None,
    "parallel": {"backend": "loky", "jobs": 1, "address": None},
}
"""What run.json does not keep (``conf.grid.ONCE``), or what a run that is done again does not leave once more."""


NOT_READ: Mapping[str, object] = {
    "arrivals": {"kind": "poisson", "rate": 1.0},
    "lengths": {},
    "workload": {"duration_s": 1.0},
}
"""What run.json does not keep of a run of sessions (``conf.run.decisive``), since nothing of it is read."""


def again(info: RunInfo, requests: Requests, changes: Mapping[str, object]) -> Run:
    """Put a run together that serves the same requests; one of sessions serves these anew.

    A turn of a session has followed the answer to the one before: it must not arrive when it did, but when it does.

    Args:
        changes: values by dotted key; a group is merged into what is there.

    Raises:
        ValueError: run.json keeps no configuration that this code knows, or a change does not fit it.
    """
    if not info.config:
        raise ValueError("its run.json keeps no configuration; name the folder of a run that this program made")
    try:
        follows = bool(info.config.get("sessions"))
        policy, lengths = _only(info.config, "policy"), _only(info.config, "sessions" if follows else "lengths")
        kept = {**NOT_READ, **info.config} if follows else info.config
        cfg: Any = DictConfig({**kept, **ONE_RUN, "compare": [policy]})
        for key, value in changes.items():
            OmegaConf.update(cfg, key, value)
        return checked_run(configured(held_to_schema(cfg)), lengths, info.system, policy, None if follows else requests)
    except OmegaConfBaseException as mistake:
        raise ValueError(one_line(mistake)) from None


def _only(config: Mapping[str, object], group: str) -> str:
    (name,) = cast("Mapping[str, object]", config[group])
    return name

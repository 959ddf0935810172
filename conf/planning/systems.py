"""The systems that are compared, put together from the configuration, and the same under a changed machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from conf import app as _schema  # registers it
from conf.build import checked_run, configured, held_to_schema
from conf.planning.ask import Question
from conf.planning.streams import Traffic
from conf.run import Run
from policies.registry import POLICIES
from traces.workload.lengths import LengthSettings

assert _schema.app

LONGEST_CONTEXT = 32_768
"""Longest request where nobody says: vLLM 0.7.3 computes longer prompts in pieces, which the default here does not."""

MOST_REQUESTS = 100_000
"""Of a seed whose source has no end."""

CAP = "max_remapped_fraction"
"""The setting of a policy that is its cap."""


CAPS = (0.1, 0.25, 0.5)
"""Caps that are tried."""

BOUND = "inactive_bound"
"""The setting that says how much an idle model may lend."""

BOUNDS = {"prefill": "", "no_stall": " no-stall"}
"""Its values that are tried, and what they add to a name: the paper's, and ours that never makes a step wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A policy, with a cap and a bound for idle models if it has them."""

    policy: str
    cap: float | None = None
    bound: str | None = None

    @property
    def name(self) -> str:
        """What to call it."""
        cap = "" if self.cap is None else f" {self.cap:.0%}"
        return f"{self.policy}{cap}{BOUNDS.get(self.bound or '', '')}"

    @property
    def lends(self) -> bool:
        """Whether it moves memory."""
        return POLICIES[self.policy].lends

    @property
    def changes(self) -> dict[str, object]:
        """What of the configuration is its own."""
        own = {CAP: self.cap, BOUND: self.bound}
        return {f"policy.{self.policy}.{name}": value for name, value in own.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A composed configuration from which runs are put together.

    Attributes:
        cfg: as Hydra composed it, models of ``mix.of`` not yet worked out.
        lengths: the name of the lengths in it.
    """

    cfg: DictConfig
    lengths: str

    def run(self, system: System, traffic: Traffic | None = None, changes: Mapping[str, object] | None = None) -> Run:
        """Put a run together, with changes of its own by dotted key.

        Raises:
            ValueError: the configuration cannot run.
        """
        cfg = cast("Any", self.cfg.copy())
        for key, value in {**system.changes, **(changes or {})}.items():
            OmegaConf.update(cfg, key, value)
        requests = None if traffic is None else traffic.streams[0].at(traffic.streams[0].rate_per_s)
        return checked_run(configured(held_to_schema(cfg)), self.lengths, system.name, system.policy, requests)


def families(asked: Question, configuration: Configuration) -> list[list[System]]:
    """The policies that are asked for, the baseline first; each family differs in its cap alone, the largest first.

    What an experiment or the command line has changed of a cap or a bound is left as it is.
    """
    found: list[list[System]] = []
    for name in asked.policies:
        defaults = {field.name: field.default for field in fields(cast("Any", POLICIES[name]))}
        own = configuration.run(System(policy=name)).policy
        is_set = {key: getattr(own, key) != defaults[key] for key in (CAP, BOUND) if key in defaults}
        bounds = list(BOUNDS) if is_set.get(BOUND) is False else [None]
        caps: list[float | None] = [None]
        if CAP in is_set:
            caps = list(asked.caps or ([getattr(own, CAP)] if is_set[CAP] else CAPS))
            caps.sort(key=lambda cap: -(cap or 0.0))
        found += [[System(policy=name, cap=cap, bound=bound) for cap in caps] for bound in bounds]
    return found


def configuration(asked: Question) -> Configuration:
    """Compose what is asked for.

    Raises:
        ValueError, HydraException, OmegaConfBaseException, YAMLError: a name or a value is wrong.
    """
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", _overrides(asked))
    if asked.hardware is not None and _is_file(asked.hardware):
        cfg = cast("DictConfig", OmegaConf.merge(cfg, {"hardware": _hardware(Path(asked.hardware))}))
    if asked.hbm_bytes is not None:
        OmegaConf.update(cfg, "hardware.hbm_bytes", asked.hbm_bytes)
    names = [str(name) for name in cfg.lengths]
    if asked.lengths is not None and ":" in asked.lengths:
        names = ["constant"]
    return Configuration(cfg=cfg, lengths=names[0])


def _overrides(asked: Question) -> list[str]:
    given = [*asked.overrides]
    own = ["backend=sim", "keep=[]", "output.figures=false", "output.folder=."]
    if asked.models:
        own += ["mix=own", f"mix.of=[{','.join(map(_quoted, asked.models))}]"]
        own += [f"mix.memory_share={asked.memory_share}", f"mix.context_tokens={_context(asked)}"]
    if asked.hardware is not None and not _is_file(asked.hardware):
        own.append(f"hardware={asked.hardware}")
    if asked.weights:
        own.append(f"workload.weights=[{','.join(map(str, asked.weights))}]")
    is_trace = asked.trace is not None or any(word.startswith("arrivals.path=") for word in asked.overrides)
    own += ["workload.duration_s=null", f"workload.n_requests={'null' if is_trace else MOST_REQUESTS}"]
    return [*own, *_requests(asked), *given]


def _context(asked: Question) -> int:
    return asked.context_tokens or LONGEST_CONTEXT


def _requests(asked: Question) -> list[str]:
    """Arrivals and lengths; the rate is the search's."""
    own: list[str] = []
    if asked.trace is not None:
        own += ["arrivals=file", f"arrivals.path={_quoted(str(asked.trace))}"]
    elif asked.models and not any(word.startswith("arrivals=") for word in asked.overrides):
        own.append(f"arrivals={asked.arrivals}")
        own += ["arrivals.rate=1.0"] if asked.arrivals in ("poisson", "gamma") else []
    if asked.lengths is None:
        return [*own, "lengths=[file]"] if asked.trace is not None else own
    if ":" not in asked.lengths:
        return [*own, f"lengths=[{asked.lengths}]"]
    prompt, _, output = asked.lengths.partition(":")
    if not (prompt.isdecimal() and output.isdecimal()):
        raise ValueError(f"--lengths {asked.lengths} must be a name or PROMPT:OUTPUT tokens, as in 512:128")
    LengthSettings(kind="constant", n_prompt_tokens=int(prompt), n_output_tokens=int(output))  # refuses 0
    own.append("lengths=[constant]")
    return [*own, f"lengths.constant.n_prompt_tokens={prompt}", f"lengths.constant.n_output_tokens={output}"]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _is_file(hardware: str) -> bool:
    return hardware.endswith((".yaml", ".yml")) or "/" in hardware


def _hardware(path: Path) -> dict[str, Any]:
    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--hardware {path}: {error.strerror}; name a file such as conf/hardware/h200.yaml") from None
    if not isinstance(values, dict):
        raise ValueError(f"--hardware {path} holds no settings; name a file such as conf/hardware/h200.yaml")
    return cast("dict[str, Any]", values)

"""What Hydra and OmegaConf say of a user's mistake, in one line: what, where; the mend."""

from __future__ import annotations

from difflib import get_close_matches

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException


def one_line(mistake: Exception) -> str:
    """Tell a mistake in one line.

    Args:
        mistake: of Hydra, OmegaConf or the YAML reader, or a ``ValueError`` that is one line already.
    """
    match mistake:
        case OverrideParseException():
            return f"{mistake.override}: {_lines(mistake)[0]}; write KEY=VALUE, in quotes if it has blanks or brackets"
        case MissingConfigException():
            choices = f"there are {', '.join(mistake.options)}" if mistake.options else "--help lists what there is"
            return f"could not find {mistake.missing_cfg_file}; {choices}"
        case HydraException(__cause__=OmegaConfBaseException() as cause):
            return one_line(cause)
        case MissingMandatoryValue():
            return f"{mistake.full_key} has no value; give {mistake.full_key}=VALUE"
        case ConfigAttributeError() | ConfigKeyError():
            mend = _keys(mistake.parent_node, like=str(mistake.key)) or f"add it with +{mistake.full_key}=VALUE"
            return f"no key {mistake.full_key}; {mend}"
        case OmegaConfBaseException(child_node=DictConfig() as group):
            return f"{mistake.full_key} is a group of settings, not a value; {_keys(group)}"
        case OmegaConfBaseException() if mistake.full_key:
            return f"{mistake.full_key}: {_lines(mistake)[0]}"
        case _:
            return "; ".join(_lines(mistake)).replace(":; ", ": ")


def _lines(mistake: Exception) -> list[str]:
    """The lines of a message, less those about OmegaConf's own types."""
    lines = [" ".join(line.split()).removesuffix(".") for line in str(mistake).splitlines()]
    return [line for line in lines if line and not line.startswith(("object_type=", "reference_type="))]


def _keys(group: object, like: str = "") -> str:
    keys = sorted(map(str, group)) if isinstance(group, DictConfig) else []
    if not keys:
        return ""
    close = get_close_matches(like, keys, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(keys)}"

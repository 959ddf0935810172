"""``python -m sim policies``: every policy in a line, and its settings."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from textwrap import wrap

from conf.cli import Refused
from conf.described import settings_of, summary
from policies.policy import Policy
from policies.registry import POLICIES

WIDTH = 120
_INDENT = 30


def main(arguments: Sequence[str]) -> int:
    """Carry out ``policies``.

    Raises:
        Refused: a name is no policy's.
    """
    parser = ArgumentParser(description="Every policy in a line, and its settings: policy.NAME.SETTING=VALUE.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="policies to tell of; else all of them")
    names: list[str] = parser.parse_args(arguments).names
    for name in names:
        if name not in POLICIES:
            raise Refused(f"no policy {name}; there are {', '.join(POLICIES)}")
    for name in names or POLICIES:
        print("\n".join(told(name, POLICIES[name])))
    return 0


def told(name: str, policy: type[Policy]) -> Iterator[str]:
    """Tell of a policy in lines."""
    lends = "lends" if policy.lends else "does not lend"
    yield from wrap(f"{name:<12}({lends}) {summary(policy)}".replace("``", ""), WIDTH, subsequent_indent=" " * 12)
    for setting in settings_of(policy):
        head = f"  {setting.name}={setting.default}"
        text = f"{head:<{_INDENT}} {setting.meaning or setting.kind}".replace("``", "")
        yield from wrap(text, WIDTH, subsequent_indent=" " * (_INDENT + 1), break_long_words=False)

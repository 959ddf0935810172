"""The command line of ``python -m traces``: a user's mistake is one line and exit code 2, as in the other programs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, cast

MISTAKE = 2  # as argparse has it
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
CLOSED = 141  # 128 + SIGPIPE: who read the output has gone


class Parser(argparse.ArgumentParser):
    """Takes a mistake as a ``ValueError``, like every other."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise ValueError(f"{message}; --help lists the options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and the module whose ``main(arguments) -> exit code`` carries it out, imported when it is called."""

    module: str
    summary: str


def dispatch(prog: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Carry out ``prog COMMAND ...``.

    Returns:
        The exit code: the command's own, 2 for a mistake of the caller, 130 after Ctrl-C.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = (f"  {name:<10} {command.summary}" for name, command in commands.items())
        print("\n".join([f"usage: {prog} COMMAND ...", "", *lines, "", f"{prog} COMMAND --help tells more."]))
        return 0
    name, *rest = arguments
    if name not in commands:
        print(f"{prog}: no command {name!r}; there are {', '.join(commands)}", file=sys.stderr)
        return MISTAKE
    try:
        main = cast("Callable[[Sequence[str]], int]", import_module(commands[name].module).main)
        code = main(rest)
        sys.stdout.flush()
        return code
    except ValueError as mistake:
        print(f"{prog} {name}: {mistake}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print(f"{prog} {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
        return CLOSED

"""``python -m WORLD COMMAND ...``: finds the command; a user's mistake is one line, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FrameType

from conf.garbage import collect_seldom, spare_the_rest

MISTAKE = 2  # as argparse has it
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
TERMINATED = 128 + signal.SIGTERM
CLOSED = 128 + 13  # SIGPIPE: who read the output has gone


class Refused(SystemExit):
    """The caller's mistake in one line: what, where; the mend.

    A ``SystemExit``, because Hydra lets only those leave a job without words of its own.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and the module whose ``main(arguments) -> exit code`` carries it out, imported when it is called."""

    module: str
    summary: str


def dispatch(prog: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Carry out ``prog COMMAND ...``.

    Args:
        prog: how the user calls the program, for messages.
        commands: by name; the first is the one whose options a shell completes.
        arguments: the command line behind ``prog``.

    Returns:
        The exit code: the command's own, 2 for a mistake of the caller, 130 after Ctrl-C, 143 after SIGTERM, 141 if
        the output is closed.
        An unexpected exception keeps its traceback, and Python exits with 1.
    """
    is_completion = arguments[:1] in (["-sc"], ["--shell-completion"])
    if is_completion:
        arguments = [_command_to_complete(commands), *arguments]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(prog, commands))
        return 0
    name, *rest = arguments
    if name not in commands:
        print(f"{prog}: no command {name!r}; there are {', '.join(commands)}", file=sys.stderr)
        return MISTAKE
    collect_seldom()
    if not is_completion:  # which needs the name of the executable
        sys.argv[0] = f"{prog} {name}"
    ended_by: list[int] = []
    try:
        with _terminable(ended_by):
            code = import_module(commands[name].module).main(rest)
        sys.stdout.flush()
        return code
    except Refused as mistake:
        print(f"{prog} {name}: {mistake}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt as stop:
        print(f"{prog} {name}: {': '.join(['interrupted', *map(str, stop.args)])}", file=sys.stderr)
        return TERMINATED if ended_by else INTERRUPTED
    except BrokenPipeError:  # whoever read the output, head or less, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
        return CLOSED
    finally:
        spare_the_rest()


@contextmanager
def _terminable(ended_by: list[int]) -> Generator[None]:
    """Let SIGTERM end a command as Ctrl-C does: what it holds is given back, its results are marked incomplete.

    Clusters send it, and a job in the background of a script hears no Ctrl-C: shells have it ignore SIGINT.

    Args:
        ended_by: the signal is added to it.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        ended_by.append(number)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _usage(prog: str, commands: Mapping[str, Command]) -> str:
    lines = (f"  {name:<10} {command.summary}" for name, command in commands.items())
    return "\n".join([f"usage: {prog} COMMAND ...", "", *lines, "", f"{prog} COMMAND --help tells more."])


def _command_to_complete(commands: Mapping[str, Command]) -> str:
    """Take the command out of the line that the shell wants to complete: Hydra completes what follows it."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    name = words.pop(1) if len(words) > 1 and words[1] in commands else next(iter(commands))
    os.environ["COMP_LINE"] = " ".join(words)
    return name

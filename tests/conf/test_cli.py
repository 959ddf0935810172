from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from conf.cli import Command, Refused, dispatch

COMMANDS = {"run": Command(module="probe_run", summary="runs"), "plan": Command(module="probe_plan", summary="plans")}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What the commands were called with; ``raise NAME`` raises."""
    seen: list[tuple[str, list[str]]] = []
    raised = {"refused": Refused("seed=-1 must be at least 0"), "bug": KeyError("bug"), "stop": KeyboardInterrupt()}

    def probe(name: str) -> ModuleType:
        def main(arguments: Sequence[str]) -> int:
            seen.append((name, list(arguments)))
            if arguments[:1] == ["raise"]:
                raise raised[arguments[1]]
            return 7

        module = ModuleType(name)
        module.__dict__["main"] = main
        return module

    for name, command in COMMANDS.items():
        monkeypatch.setitem(sys.modules, command.module, probe(name))
    monkeypatch.setattr(sys, "argv", ["/bin/lab"])
    return seen


def test_a_command_gets_the_rest_of_the_line_and_gives_the_exit_code(calls: list[tuple[str, list[str]]]) -> None:
    assert dispatch("python -m lab", COMMANDS, ["plan", "a=1", "--help"]) == 7
    assert calls == [("plan", ["a=1", "--help"])]
    assert sys.argv[0] == "python -m lab plan"  # what argparse calls the program


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_without_a_command_the_commands_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch("python -m lab", COMMANDS, arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: python -m lab COMMAND")
    assert "plan       plans" in out


def test_an_unknown_command_is_a_mistake_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch("python -m lab", COMMANDS, ["rnu"]) == 2
    assert capsys.readouterr().err == "python -m lab: no command 'rnu'; there are run, plan\n"


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("refused", 2, "python -m lab run: seed=-1 must be at least 0\n"),
        ("stop", 130, "python -m lab run: interrupted\n"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_mistakes_and_interrupts_are_one_line(
    name: str, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch("python -m lab", COMMANDS, ["run", "raise", name]) == code
    assert capsys.readouterr().err == line


@pytest.mark.usefixtures("calls")
def test_a_bug_is_not_caught() -> None:
    with pytest.raises(KeyError, match="bug"):
        dispatch("python -m lab", COMMANDS, ["run", "raise", "bug"])


def test_completion_goes_to_the_command_on_the_line_without_its_name(
    calls: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", "lab plan mix=")
    assert dispatch("python -m lab", COMMANDS, ["-sc", "query=bash"]) == 7
    assert calls == [("plan", ["-sc", "query=bash"])]
    assert os.environ["COMP_LINE"] == "lab mix="
    assert sys.argv[0] == "/bin/lab"  # what the shell completes

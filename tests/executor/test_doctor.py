from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest

from executor import doctor
from executor.doctor import Finding, State, World, can_run, examine, main


def finding(world: World, state: State) -> Finding:
    return Finding(what="thing", world=world, state=state, found="so and so", mend="do this")


def test_this_machine_can_run_memfd(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    assert "backend=memfd (CPU, real mappings): can run: python -m executor run" in told
    for line in told.split("\n\n")[0].splitlines():
        assert line.startswith(("ok ", "missing ", "not there "))


def test_every_line_that_is_not_ok_says_what_to_do() -> None:
    assert all(each.mend for each in examine() if each.state is not State.OK)
    assert not any(each.mend for each in examine() if each.state is State.OK)


def test_what_only_the_other_world_needs_does_not_matter() -> None:
    findings = [finding(World.ANY, State.OK), finding(World.GPU, State.MISSING), finding(World.CPU, State.OPTIONAL)]
    assert can_run(World.CPU, findings)
    assert not can_run(World.GPU, findings)
    assert not can_run(World.CPU, [*findings, finding(World.ANY, State.MISSING)])


def test_without_memfd_and_gpu_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(doctor, "gpu", lambda: [finding(World.GPU, State.MISSING)])
    assert main([]) == doctor.NOTHING_RUNS
    told = capsys.readouterr().out
    assert "has no memfd_create; run on Linux, or in a Linux container" in told
    assert "cannot run, see what is missing above" in told


def test_a_full_disk_is_told_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: object) -> SimpleNamespace:
        return SimpleNamespace(total=10, used=10, free=0)

    monkeypatch.setattr(shutil, "disk_usage", full)
    assert doctor.disk().state is State.OPTIONAL
    assert doctor.disk().mend == "give output.root=FOLDER on a larger disk"


def test_a_package_that_is_not_installed_is_told_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(doctor, "find_spec", nothing)
    assert doctor.torch_found().state is State.MISSING
    assert doctor.torch_found().mend == 'pip install "hbmlab[executor]"'
    assert [each.state for each in doctor.gpu()] == [State.MISSING]

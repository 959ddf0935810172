"""The files of docs/measured: rows, and above them where and with what they were measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from traces.results.provenance import commit, versions

GPU_PACKAGES = ("triton", "cuda-bindings")


def gpu(index: int = 0) -> tuple[str, str]:
    """Name a GPU and its driver."""
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    return name, driver


def machine(device: str, driver: str) -> dict[str, object]:
    """Say when, on what and with which code something is measured."""
    packages = versions()
    for package in GPU_PACKAGES:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": date.today().isoformat(),
        "device": device,
        "driver": driver,
        "commit": commit(),
        "versions": packages,
    }


def write(out: Path, head: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> None:
    """Write a file, a row a line."""
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    out.write_text(f'{{\n "machine": {json.dumps(head)},\n "rows": [\n  {lines}\n ]\n}}\n')

"""Triton's kernels run in a process of their own: they are bound to a GPU or to Triton's interpreter at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("kernel_cases.py")


def run_cases(**variables: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-500:]


def test_the_kernels_pass_in_tritons_interpreter() -> None:
    run_cases(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_kernels_pass_on_a_gpu() -> None:
    run_cases()

"""Triton's kernels run in a process of their own: they are bound to a GPU or to Triton's interpreter at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

CASES = Path(__file__).with_name("kernel_cases.py")


def test_the_kernels_pass_on_a_gpu_or_else_in_tritons_interpreter() -> None:
    interpreter = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, env={**os.environ, **interpreter}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

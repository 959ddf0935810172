"""Statistics of arrival times, and trace files as published, for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from policies.types import NS_PER_S

START = datetime(2023, 11, 16, 18, 17, 3, tzinfo=UTC)


def idc(times_ns: Sequence[int], window_ns: int) -> float:
    """Variance over mean of the counts in whole windows from 0 to the last arrival."""
    n_windows = times_ns[-1] // window_ns
    counts = np.bincount(np.array(times_ns) // window_ns, minlength=n_windows)[:n_windows]
    return float(counts.var(ddof=1) / counts.mean())


def cv(times_ns: Sequence[int]) -> float:
    """Coefficient of variation of the inter-arrival times."""
    gaps = np.diff(times_ns)
    return float(gaps.std() / gaps.mean())


def write_azure(path: Path, rows: Iterable[tuple[int, int, int]]) -> Path:
    """Write (ns, prompt, output) as the Azure trace is published: CRLF, 7 digits, no final line end."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for arrival_ns, n_prompt, n_output in rows:
        second = START + timedelta(seconds=arrival_ns // NS_PER_S)
        lines.append(f"{second:%Y-%m-%d %H:%M:%S}.{arrival_ns % NS_PER_S // 100:07d},{n_prompt},{n_output}")
    path.write_bytes("\r\n".join(lines).encode())
    return path

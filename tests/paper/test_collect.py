"""Experiments by their names: a mistake in a change of one is one line."""

from __future__ import annotations

from re import escape

import pytest

from conf.cli import Refused
from conf.paper.claims import main
from conf.paper.collect import composed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("vamp/decisions", "vamp/decisions: Error parsing override 'vamp/decisions'; write KEY=VALUE"),
        ("nokey=3", "no key nokey; there are"),
        ("policy.mirage.capp=0.5", "no key policy.mirage.capp; "),
        ("serving.max_num_seqs=many", "serving.max_num_seqs: "),
    ],
)
def test_a_faulty_change_is_told_in_one_line(change: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{escape(told)}") as mistake:
        composed("mirage/fig5b", [change])
    assert "\n" not in str(mistake.value)


def test_claims_refuses_what_is_no_change() -> None:
    with pytest.raises(Refused, match="write KEY=VALUE"):
        main(["--only", "M056", "vamp/decisions"])

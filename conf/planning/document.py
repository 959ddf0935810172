"""The answer as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any, cast

from conf.planning import words
from conf.planning.answer import Answer
from traces.results.provenance import commit, versions

SCHEMA_VERSION = 1


def document(answer: Answer) -> dict[str, object]:
    """Everything that was found, and what it was found with."""
    verdict = "pays" if answer.pays else "unsure" if answer.is_unsure else "does not pay"
    told = {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict,
        "words": words.verdict(answer),
        "recommended": answer.recommended.name,
        "reference": answer.reference.name,
        "lender": None if answer.lender is None else answer.lender.name,
        "gain": None if answer.gain is None else asdict(answer.gain),
        "slo": asdict(answer.asked.slo),
        "rates": [
            {
                "system": each.system.name,
                "rate_per_s": asdict(each.rate),
                "gain": None if each.gain is None else asdict(each.gain),
                "brackets": [asdict(bracket) for bracket in each.brackets],
            }
            for each in answer.rates
        ],
        "served_at_reference_rates": [
            {"system": served.system.name, "seeds": [asdict(run) for run in served.runs]} for served in answer.served
        ],
        "more_of_a_resource": [asdict(relief) for relief in answer.reliefs],
        "link": None
        if answer.link is None
        else {
            "pays_from_bytes_per_s": answer.link.bytes_per_s,
            "now_bytes_per_s": answer.link.now_bytes_per_s,
            "system": None if answer.link.system is None else answer.link.system.name,
        },
        "curve": [{"rate_per_s": rate, "kept_share": shares} for rate, shares in answer.curve],
        "models": [{key: value for key, value in asdict(model).items() if key != "derived"} for model in answer.models],
        "requests": {
            "description": answer.traffic.description,
            "rate_per_s": answer.traffic.rate_per_s,
            "seeds": [
                {"seed": stream.seed, "n_requests": len(stream.arrivals), "rate_per_s": stream.rate_per_s}
                for stream in answer.traffic.streams
            ],
        },
        "config": answer.run.config,
        "commit": commit(),
        "versions": versions(),
    }
    return cast("dict[str, object]", _finite(told))


def _finite(value: Any) -> Any:
    """What JSON has no word for, an infinite number, as ``None``."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in cast("list[Any]", value)]
    return value

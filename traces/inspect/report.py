"""What an inspection found, as one document and as a screen of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from policies.types import NS_PER_S
from traces.inspect.inspection import Inspection
from traces.inspect.oddities import ODDITIES

FIRST_DATE_NS = 10**9 * NS_PER_S
"""Times below are no dates since 1970: the file counts from somewhere else."""

LABEL = 16


def report(found: Inspection, most_rows: int) -> dict[str, object]:
    """Give everything that was found, by name.

    Args:
        most_rows: row numbers to give of each oddity.
    """
    has_identity = "no_prefix_identity" not in found.finds.by_key
    return {
        "file": str(found.path),
        "format": found.detected.name,
        "source": found.detected.format.source,
        "container": found.detected.container,
        "gzip": found.spelling.is_gzip,
        "rows": found.n_rows,
        "failed_rows": found.n_failed,
        "faulty_rows": found.finds.by_key["fault"].count if "fault" in found.finds.by_key else 0,
        "times": _times(found),
        "arrivals": found.arrivals.summary() if found.arrivals.n else None,
        "prompt_tokens": found.prompts.summary(),
        "output_tokens": found.outputs.summary(),
        "sessions": found.sessions.summary() if len(found.sessions) else None,
        "inferred_sessions": found.chains.summary() if has_identity and not len(found.sessions) else None,
        "prefixes": _prefixes(found) if found.caches[-1].n_blocks else None,
        "passage_reuse_share": {kind: each.n_hits / each.n_blocks for kind, each in found.passages.items()},
        "odd": {
            key: {
                "what": ODDITIES[key],
                "count": f.count,
                "rows": f.lines[:most_rows],
                "details": f.details[:most_rows],
            }
            for key, f in found.finds.by_key.items()
        },
    }


def _times(found: Inspection) -> dict[str, object]:
    spellings = [
        {"fraction_digits": digits, "zone": zone or "none", "rows": n}
        for (digits, zone), n in found.clock.spellings.items()
    ]
    first_ns = found.arrivals.first_ns
    is_date = found.arrivals.n > 0 and first_ns >= FIRST_DATE_NS
    first = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=first_ns // 1000) if is_date else None
    return {
        "unit": found.clock.unit,
        "unit_from": found.clock.why if found.arrivals.n else None,
        "spelled": spellings,
        "first": first.isoformat() if first else first_ns / NS_PER_S if found.arrivals.n else None,
        "rows_with_time": found.arrivals.n,
    }


def _prefixes(found: Inspection) -> dict[str, object]:
    unlimited = found.caches[-1]
    return {
        "block_tokens": found.block_tokens,
        "blocks": unlimited.n_blocks,
        "unique_blocks": len(unlimited),
        "caches": [cache.summary() for cache in found.caches],
    }


def text(document: Mapping[str, Any]) -> str:
    """Write a report for a person."""
    return "\n".join(_lines(document))


def _lines(doc: Mapping[str, Any]) -> Iterator[str]:
    packed = ", gzip" if doc["gzip"] else ""
    yield _line("file", doc["file"])
    yield _line("format", f"{doc['format']} ({doc['container']}{packed}): {doc['source']}")
    yield _line("rows", f"{doc['rows']}, of these failed {doc['failed_rows']}; unreadable {doc['faulty_rows']}")
    yield from _time_lines(doc)
    for name in ("prompt", "output"):
        yield _line(f"{name} tokens", _figures(doc[f"{name}_tokens"]))
    if doc["sessions"] is not None:
        yield from _session_lines(doc["sessions"])
    if doc["inferred_sessions"] is not None:
        yield from _chain_lines(doc["inferred_sessions"])
    if doc["prefixes"] is not None:
        yield from _prefix_lines(doc["prefixes"])
    if doc["passage_reuse_share"]:
        shares = ", ".join(f"{kind} {share:.4f}" for kind, share in doc["passage_reuse_share"].items())
        yield _line("parts", f"share that was named before: {shares}")
    yield from _odd_lines(doc["odd"], doc["container"])


def _time_lines(doc: Mapping[str, Any]) -> Iterator[str]:
    times, arrivals = doc["times"], doc["arrivals"]
    if arrivals is None:
        yield _line("times", "none")
        return
    unit = "" if times["unit"] is None else f"numbers in {times['unit']} ({times['unit_from']}); "
    spelled = "".join(
        f"dates with {s['fraction_digits']} digits, zone {s['zone']} ({s['rows']}); " for s in times["spelled"]
    )
    yield _line("times", f"{unit}{spelled}the first is {times['first']}")
    yield _line("span", f"{_number(arrivals['span_s'])} s, {_number(arrivals['rate_per_s'])} requests/s")
    idc = ", ".join(f"{name[4:]} {_number(value)}" for name, value in arrivals.items() if name.startswith("idc_"))
    yield _line("burstiness", f"CV of gaps {_number(arrivals['gap_cv'])}; variance/mean of counts: {idc}")
    empty = _number(arrivals["empty_seconds_share"])
    yield _line(
        "",
        f"most in 1 s {arrivals['most_in_1s']}; empty seconds {empty}; ties {arrivals['ties']}; longest gap "
        f"{_number(arrivals['longest_gap_s'])} s, above 60 s {arrivals['gaps_above_60s']}; grid "
        f"{arrivals['grid_s']:g} s",
    )


def _session_lines(sessions: Mapping[str, Any]) -> Iterator[str]:
    single = _number(sessions["single_turn_share"])
    yield _line("sessions", f"{sessions['sessions']}, with a single turn {single}")
    for name in ("turns_per_session", "tokens_added_per_turn", "think_s", "start_to_start_s"):
        if sessions[name]:
            yield _line("", f"{name.replace('_', ' ')}: {_figures(sessions[name])}")


def _chain_lines(chains: Mapping[str, Any]) -> Iterator[str]:
    single = _number(chains["single_turn_share"])
    yield _line("sessions", f"not named; {chains['chains']} inferred from shared blocks, with a single turn {single}")
    for name in ("turns_per_chain", "start_to_start_s"):
        if chains[name]:
            yield _line("", f"{name.replace('_', ' ')}: {_figures(chains[name])}")


def _prefix_lines(prefixes: Mapping[str, Any]) -> Iterator[str]:
    counts = f"{prefixes['blocks']} blocks of {prefixes['block_tokens']} tokens, {prefixes['unique_blocks']} unique"
    yield _line("prefixes", f"{counts}; found again (LRU, touched from the root):")
    for cache in prefixes["caches"]:
        size = "no limit" if cache["capacity_blocks"] is None else f"{cache['capacity_blocks']} blocks"
        yield _line("", f"{size}: blocks {cache['block_hit_share']:.4f}, tokens {cache['token_hit_share']:.4f}")


def _odd_lines(odd: Mapping[str, Any], container: str) -> Iterator[str]:
    yield _line("odd", "nothing" if not odd else "")
    place = "elements" if container == "json" else "lines"
    for key, find in odd.items():
        rows = _shortened([str(row) for row in find["rows"]], find["count"])
        details = _shortened(find["details"], len(find["details"]))
        yield f"  {key} x {find['count']}: {find['what']}{'; ' + place + ' ' + rows if rows else ''}"
        if details:
            yield f"      {details}"


def _shortened(words: list[str], n_all: int, most: int = 5) -> str:
    return ", ".join(words[:most]) + (", ..." if n_all > most and words else "")


def _line(label: str, value: object) -> str:
    return f"{label:<{LABEL}}{value}"


def _figures(figures: Mapping[str, object]) -> str:
    return ", ".join(f"{name.upper() if name[0] == 'p' else name} {_number(value)}" for name, value in figures.items())


def _number(value: object) -> str:
    if value is None:
        return "-"
    number = cast(float, value)
    return f"{number:.4g}" if isinstance(number, float) and abs(number) < 1000 else f"{number:.1f}".removesuffix(".0")

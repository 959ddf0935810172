"""The answer in words and figures: lines that the screen, the page and the document share."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf

from conf.planning.answer import Answer, Model, Rates, Served
from conf.planning.interval import Interval
from conf.planning.limits import LINK_PRECISION, MORE, Relief
from conf.planning.slo import OVERLOAD
from policies.types import GB, GIB, KIB, MIB

BINDS = 0.02
"""Gain from a quarter more of a resource below which it is said not to bind: as fine as the rates are found."""

RESOURCES = {
    "memory": "memory for KV cache",
    "HBM": "HBM bandwidth",
    "computation": "computation",
    "link": "the link to host memory",
    "host": "the host's time for each step",
}


def verdict(answer: Answer) -> str:
    """Whether lending pays, in a sentence."""
    if answer.lender is None or answer.gain is None:
        if answer.lender is None:
            return "No policy that lends was asked for."
        return f"Without lending the promise is kept at no rate{_why_never(answer)}."
    if answer.is_open:
        return "It cannot be told whether it pays to lend: every rate that was tried is kept, so short is the stream."
    lender, reference = answer.of(answer.lender), answer.of(answer.reference)
    rates = f"{_rate(lender.rate.mean)} requests/s against {_rate(reference.rate.mean)}, {change(answer.gain)}"
    if answer.pays:
        return f"It pays to lend, with {answer.lender.name}: {rates}."
    if answer.is_unsure:
        return f"It is not sure that it pays to lend: at best, with {answer.lender.name}, {rates}."
    if answer.gain.mean == 0 and not _served(answer, 1).mean(lambda run: run.lent_bytes):
        return f"It does not pay to lend: {answer.lender.name}, the best of those that lend, lends nothing."
    return f"It does not pay to lend: at best, with {answer.lender.name}, {rates}."


def _why_never(answer: Answer) -> str:
    run = _served(answer, 0)
    ttft, tbt = run.mean(lambda each: each.ttft_missed), run.mean(lambda each: each.tbt_missed)
    return f": of the requests {ttft:.0%} miss their TTFT and {tbt:.0%} their TBT at {_lowest(answer)} requests/s"


def _lowest(answer: Answer) -> str:
    brackets = answer.of(answer.reference).brackets
    return _rate(min(bracket.low or bracket.high for bracket in brackets) * answer.asked.n_gpus)


def _served(answer: Answer, index: int) -> Served:
    return answer.served[index]


def link(answer: Answer) -> str:
    """From which link speed on lending pays."""
    found = answer.link
    if found is None:
        return ""
    now = found.now_bytes_per_s / GB
    if found.bytes_per_s is None:
        return f"Link: at no speed would lending pay (now {now:.4g} GB/s); what binds is below."
    speed, name = found.bytes_per_s / GB, found.system.name if found.system else ""
    within = f"within a factor of {LINK_PRECISION:g}"
    if answer.pays:
        return f"Link: lending pays from about {speed:.3g} GB/s on ({name}; {within}); now {now:.4g} GB/s."
    return f"Link: lending would pay from about {speed:.3g} GB/s on ({name}; {within}); now {now:.4g} GB/s."


def binds(answer: Answer) -> str:
    """What binds the recommended system."""
    if not answer.reliefs:
        brackets = answer.of(answer.recommended).brackets
        every = all(bracket.low for bracket in brackets)
        return (
            f"What binds: not to be told, since the promise is kept at {'every' if every else 'no'} rate of some seed."
        )
    first = answer.reliefs[0]
    name = answer.recommended.name
    if first.gain.mean < BINDS:
        return f"What binds {name}: none of these; a quarter more of any gives less than {BINDS:.0%}."
    each = ", ".join(f"{relief_name(relief)} {relief.gain.mean:+.0%}" for relief in answer.reliefs)
    return f"What binds {name}: {RESOURCES[first.resource]}. {MORE - 1:.0%} more of it gives: {each}."


def relief_name(relief: Relief) -> str:
    """What a resource is called in a row."""
    return RESOURCES[relief.resource].removeprefix("the ")


def cost(answer: Answer) -> Iterator[str]:
    """What lending buys and costs at the rates that are kept without it."""
    if answer.lender is None or len(answer.served) < 2:
        return
    without, lent = answer.served
    mean, peak = lent.mean(lambda run: run.lent_bytes), max(run.peak_lent_bytes for run in lent.runs)
    if not peak:
        return
    yield (
        f"Lending buys {mean / GIB:.2f} GiB of KV cache on average and {peak / GIB:.2f} at most, at the rates that "
        f"{answer.reference.name} keeps;"
    )
    before, after = (served.mean(lambda run: run.tbt_s[2]) for served in (without, lent))
    middle_before, middle_after = (served.mean(lambda run: run.tbt_s[0]) for served in (without, lent))
    yield (
        f"it costs {_ms(middle_before)} -> {_ms(middle_after)} ms in the median mean TBT of a request, "
        f"{_ms(before)} -> {_ms(after)} ms at P99; {lent.mean(lambda run: run.stall_share):.1%} of the time is stalls."
    )


def wanted(answer: Answer) -> str:
    """Whether the rate that was asked for is kept."""
    rate = answer.asked.rate_per_s
    if rate is None:
        own = answer.traffic.rate_per_s
        return f"The trace's own rate is {_rate(own)} requests/s." if answer.asked.trace else ""
    kept = [each.system.name for each in answer.rates if each.rate.mean >= rate]
    return f"At {_rate(rate)} requests/s the promise is kept by {', '.join(kept) if kept else 'none'}."


def oddities(answer: Answer) -> Iterator[str]:
    """What the reader has to know about the figures."""
    for model in answer.models:
        n, of = model.n_too_long
        if n:
            yield f"{model.name}: {n} of {of} requests exceed {model.context_tokens} tokens and are left out."
    if answer.asked.n_gpus > 1:
        yield f"{answer.asked.n_gpus} GPUs, each with all models and an even part of the requests."
    slo = answer.asked.slo
    fastest = max(bracket.low for each in answer.rates for bracket in each.brackets)
    n, needed = len(answer.traffic.streams[0].arrivals), ceil(fastest * slo.span_s)
    if n < needed:
        is_all = answer.asked.trace is not None and answer.asked.n_requests is None  # more would have been taken
        mend = f"take a trace of {needed} requests" if is_all else f"take --requests {needed}"
        yield (
            f"{n} requests last {n / fastest:.3g} s at {_rate(fastest * answer.asked.n_gpus)} requests/s, too short to "
            f"show an overload of {OVERLOAD:.0%}: the highest rates may be too high; {mend}."
        )
    infinite = [each.system.name for each in answer.rates if any(b.high == inf for b in each.brackets)]
    if infinite:
        yield f"{', '.join(infinite)}: kept at every rate that was tried."


def what(answer: Answer) -> str:
    """What was asked, in a line."""
    hardware = answer.run.settings.hardware
    gpus = f"{answer.asked.n_gpus} x " if answer.asked.n_gpus > 1 else ""
    models = ", ".join(model.name for model in answer.models)
    link_speed = f"{hardware.link.h2d_bytes_per_s / GB:.4g} GB/s to the device"
    return f"{models} on {gpus}{hardware.name} ({hardware.hbm_bytes / GIB:.1f} GiB, {link_speed})"


def requests(answer: Answer) -> str:
    """What is served, in a line."""
    first = answer.traffic.description.partition(";")[0].partition(": ")[0]
    n = len(answer.traffic.streams[0].arrivals)
    return f"{first}; {len(answer.traffic.streams)} seeds of {n} requests, the same for every system and rate"


def model_cells(model: Model) -> list[str]:
    """A model as a row: ``MODEL_HEADS``."""
    expert = "" if model.expert_bytes is None else f"{model.expert_bytes / MIB:.4g}"
    return [
        model.name,
        f"{model.n_layers}",
        f"{model.layer_bytes / MIB:.1f}",
        expert,
        f"{model.total_bytes / GIB:.1f}",
        f"{model.kv_bytes_per_token / KIB:.4g}",
        f"{model.share:.1%}",
        f"{model.kv_tokens:,}",
        f"{model.context_tokens:,}",
    ]


MODEL_HEADS = ("model", "layers", "layer MiB", "expert MiB", "all GiB", "KiB/token", "of HBM", "KV tokens", "context")

RATE_HEADS = ("system", "keeps it up to", "95 %", "against the first")


def rate_rows(answer: Answer) -> Iterator[list[str]]:
    """Each system as a row: ``RATE_HEADS``. Caps that were never reached share the row of the smallest of them."""
    first = answer.rates[0].system
    for each in shown(answer):
        low, high = max(0.0, each.rate.low), each.rate.high
        gain = "" if each.system == first else "-" if each.gain is None else change(each.gain)
        yield [each.system.name, f"{_rate(each.rate.mean)}/s", f"{_rate(low)} - {_rate(high)}", gain]


def shown(answer: Answer) -> Iterator[Rates]:
    """The systems that are told: of caps that were not in reach, the smallest."""
    for index, each in enumerate(answer.rates):
        later = answer.rates[index + 1 :]
        if not any(one.brackets == each.brackets and _kin(one, each) for one in later):
            yield each


def _kin(one: Rates, other: Rates) -> bool:
    return (one.system.policy, one.system.bound) == (other.system.policy, other.system.bound)


COST_HEADS = ("system", "TTFT P50", "P99 s", "mean TBT P50", "P99 ms", "tokens/s", "preempted", "lent GiB", "busy")

COST_HEADS_LONG = (
    "system",
    "TTFT P50, s",
    "TTFT P99, s",
    "mean TBT P50, ms",
    "mean TBT P99, ms",
    "tokens/s",
    "preemptions",
    "lent, GiB",
    "busy",
)
"""The same where there is room."""


def cost_rows(answer: Answer) -> Iterator[list[str]]:
    """Reference and lender at the rates that the reference keeps: ``COST_HEADS``."""
    for served in answer.served:
        yield [
            served.system.name,
            f"{served.mean(lambda run: run.ttft_s[0]):.3g}",
            f"{served.mean(lambda run: run.ttft_s[2]):.3g}",
            _ms(served.mean(lambda run: run.tbt_s[0])),
            _ms(served.mean(lambda run: run.tbt_s[2])),
            f"{served.mean(lambda run: run.tokens_per_s):.4g}",
            f"{served.mean(lambda run: run.n_preemptions):.3g}",
            f"{served.mean(lambda run: run.lent_bytes) / GIB:.2f}",
            f"{served.mean(lambda run: run.busy_share):.0%}",
        ]


def change(gain: Interval) -> str:
    """A relative change with its interval."""
    return f"{gain.mean:+.1%} ({max(-1.0, gain.low):+.0%} to {gain.high:+.0%})"


def _rate(rate_per_s: float) -> str:
    return f"{rate_per_s:,.0f}" if rate_per_s >= 999.5 else f"{rate_per_s:.3g}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g}"

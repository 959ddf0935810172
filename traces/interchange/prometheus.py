"""A run as vLLM's own metrics, in Prometheus' text format: dashboards and scripts made for a server read it.

Names, labels and buckets are those of vLLM V1. Left out is what a run does not keep: how many tokens a prefix cache
was asked for. Gauges are those of the end of the run.

Source: vllm/v1/metrics/loggers.py, docs/design/metrics.md.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.types import NS_PER_S
from traces.results.folder import RunTables

if TYPE_CHECKING:
    import numpy.typing as npt
    from prometheus_client.core import Metric

    from traces.results.tables import Columns

    Numbers = npt.NDArray[np.int64]

TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
REQUEST_TOKENS = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))

_OF_A_REQUEST = (
    "model",
    "arrival_ns",
    "n_prompt_tokens",
    "n_output_tokens",
    "max_output_tokens",
    "first_token_ns",
    "finish_ns",
    "scheduled_ns",
    "outcome",
    "n_preemptions",
    "n_hit_tokens",
    "mean_gap_ns",
)

LABELS = ("model_name", "engine")
ENGINE = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Histogram:
    """A histogram: its buckets, and the values of one model in ``unit`` with how often each occurred."""

    name: str
    documentation: str
    buckets: Sequence[float]
    unit: int
    of: Callable[[RunTables, int], tuple[Numbers, Numbers]]


def exposition(run: RunTables) -> bytes:
    """Write the metrics of a run, each model by its name.

    Raises:
        ValueError: the package prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise ValueError('the package prometheus-client is not here; pip install "hbmlab[metrics]"') from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(run))
    return generate_latest(registry)


class _Collector:
    """Gives the metrics of a run, as prometheus_client asks for them."""

    def __init__(self, run: RunTables) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        """All of them, in a fixed order."""
        yield from _gauges(self._run)
        yield from _counters(self._run)
        for histogram in _HISTOGRAMS:
            yield _filled(histogram, self._run)


def _requests(run: RunTables, model: int, outcomes: Sequence[str] | None = None) -> Columns:
    columns = run.columns("requests", _OF_A_REQUEST)
    chosen = columns["model"] == model
    if outcomes is not None:
        chosen &= np.isin(columns["outcome"], outcomes)
    return {name: column[chosen] for name, column in columns.items()}


def _finished(of: Callable[[Columns], Numbers]) -> Callable[[RunTables, int], tuple[Numbers, Numbers]]:
    def values(run: RunTables, model: int) -> tuple[Numbers, Numbers]:
        found = of(_requests(run, model, ["finished"]))
        return found, np.ones_like(found)

    return values


def _scheduled(of: Callable[[Columns], Numbers]) -> Callable[[RunTables, int], tuple[Numbers, Numbers]]:
    """Of finished requests; none if the run does not say when they were scheduled, as a server's log does not."""

    def known(columns: Columns) -> Numbers:
        found = of(columns)
        return found if columns["scheduled_ns"].any() else found[:0]

    return _finished(known)


def _several(columns: Columns) -> Numbers:
    return columns["mean_gap_ns"][columns["n_output_tokens"] > 1]


def _gaps(run: RunTables, model: int) -> tuple[Numbers, Numbers]:
    columns = run.columns("gaps", ("model", "gap_ns", "n"))
    own = columns["model"] == model
    return columns["gap_ns"][own], columns["n"][own]


def _step_tokens(run: RunTables, model: int) -> tuple[Numbers, Numbers]:
    if "steps" not in run.kept:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    columns = run.columns("steps", ("model", "n_prefill_tokens", "n_decode_seqs"))
    tokens = (columns["n_prefill_tokens"] + columns["n_decode_seqs"])[columns["model"] == model]
    return tokens, np.ones_like(tokens)


_HISTOGRAMS = (
    _Histogram(
        name="vllm:time_to_first_token_seconds",
        documentation="First token minus arrival, of finished requests.",
        buckets=TTFT_S,
        unit=NS_PER_S,
        of=_finished(lambda each: each["first_token_ns"] - each["arrival_ns"]),
    ),
    _Histogram(
        name="vllm:inter_token_latency_seconds",
        documentation="Every gap between two tokens of a request.",
        buckets=TOKEN_S,
        unit=NS_PER_S,
        of=_gaps,
    ),
    _Histogram(
        name="vllm:request_time_per_output_token_seconds",
        documentation="Mean gap of a request with two tokens or more.",
        buckets=TOKEN_S,
        unit=NS_PER_S,
        of=_finished(_several),
    ),
    _Histogram(
        name="vllm:e2e_request_latency_seconds",
        documentation="Last token minus arrival.",
        buckets=REQUEST_S,
        unit=NS_PER_S,
        of=_finished(lambda each: each["finish_ns"] - each["arrival_ns"]),
    ),
    _Histogram(
        name="vllm:request_queue_time_seconds",
        documentation="From arrival until a step that computes a part of it was first composed.",
        buckets=REQUEST_S,
        unit=NS_PER_S,
        of=_scheduled(lambda each: each["scheduled_ns"] - each["arrival_ns"]),
    ),
    _Histogram(
        name="vllm:request_prefill_time_seconds",
        documentation="From then to the first token.",
        buckets=REQUEST_S,
        unit=NS_PER_S,
        of=_scheduled(lambda each: each["first_token_ns"] - each["scheduled_ns"]),
    ),
    _Histogram(
        name="vllm:request_inference_time_seconds",
        documentation="From then to the last token.",
        buckets=REQUEST_S,
        unit=NS_PER_S,
        of=_scheduled(lambda each: each["finish_ns"] - each["scheduled_ns"]),
    ),
    _Histogram(
        name="vllm:request_decode_time_seconds",
        documentation="Last token minus first token.",
        buckets=REQUEST_S,
        unit=NS_PER_S,
        of=_finished(lambda each: each["finish_ns"] - each["first_token_ns"]),
    ),
    _Histogram(
        name="vllm:request_prompt_tokens",
        documentation="Prompt tokens of a finished request.",
        buckets=REQUEST_TOKENS,
        unit=1,
        of=_finished(lambda each: each["n_prompt_tokens"]),
    ),
    _Histogram(
        name="vllm:request_generation_tokens",
        documentation="Output tokens of a finished request.",
        buckets=REQUEST_TOKENS,
        unit=1,
        of=_finished(lambda each: each["n_output_tokens"]),
    ),
    _Histogram(
        name="vllm:request_params_max_tokens",
        documentation="Output tokens that a finished request had declared at most.",
        buckets=REQUEST_TOKENS,
        unit=1,
        of=_finished(lambda each: each["max_output_tokens"]),
    ),
    _Histogram(
        name="vllm:iteration_tokens_total",
        documentation="Tokens of a step.",
        buckets=STEP_TOKENS,
        unit=1,
        of=_step_tokens,
    ),
)


def _filled(histogram: _Histogram, run: RunTables) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(histogram.name, histogram.documentation, labels=LABELS)
    for index, model in enumerate(run.info.models):
        values, counts = histogram.of(run, index)
        bounds = [*(bound * histogram.unit for bound in histogram.buckets), np.inf]
        below = [int(counts[values <= bound].sum()) for bound in bounds]
        names = [*(repr(float(bound)) for bound in histogram.buckets), "+Inf"]
        total = int((values * counts).sum()) / histogram.unit
        family.add_metric([model.name, ENGINE], list(zip(names, below, strict=True)), sum_value=total)
    return family


def _gauges(run: RunTables) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, documentation, outcomes in (
        ("vllm:num_requests_running", "Requests that ran when the run ended.", ["running"]),
        ("vllm:num_requests_waiting", "Requests that waited when the run ended.", ["waiting", "swapped"]),
    ):
        family = GaugeMetricFamily(name, documentation, labels=LABELS)
        for index, model in enumerate(run.info.models):
            family.add_metric([model.name, ENGINE], len(_requests(run, index, outcomes)["model"]))
        yield family
    if "memory" not in run.kept:
        return
    use = run.columns("memory", ("model", "n_base_blocks", "n_base_used", "n_lent_blocks", "n_lent_used"))
    family = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share of the KV blocks in use at the end.", labels=LABELS)
    for index, model in enumerate(run.info.models):
        rows = np.flatnonzero(use["model"] == index)
        if len(rows):
            last = {name: int(column[rows[-1]]) for name, column in use.items()}
            n_blocks = last["n_base_blocks"] + last["n_lent_blocks"]
            family.add_metric([model.name, ENGINE], (last["n_base_used"] + last["n_lent_used"]) / max(1, n_blocks))
    yield family


def _counters(run: RunTables) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, documentation, column in (
        ("vllm:num_preemptions", "Preemptions.", "n_preemptions"),
        ("vllm:prompt_tokens", "Prompt tokens of requests that were not dropped.", "n_prompt_tokens"),
        ("vllm:generation_tokens", "Output tokens.", "n_output_tokens"),
        ("vllm:prefix_cache_hits", "Prompt tokens that were found in the prefix cache.", "n_hit_tokens"),
    ):
        family = CounterMetricFamily(name, documentation, labels=LABELS)
        for index, model in enumerate(run.info.models):
            served = _requests(run, index, ["finished", "running", "waiting", "swapped"])
            family.add_metric([model.name, ENGINE], int(served[column].sum()))
        yield family
    success = CounterMetricFamily("vllm:request_success", "Finished requests.", labels=[*LABELS, "finished_reason"])
    for index, model in enumerate(run.info.models):
        finished = _requests(run, index, ["finished"])
        n_cut = int((finished["n_output_tokens"] >= finished["max_output_tokens"]).sum())
        success.add_metric([model.name, ENGINE, "stop"], len(finished["model"]) - n_cut)
        success.add_metric([model.name, ENGINE, "length"], n_cut)
    yield success

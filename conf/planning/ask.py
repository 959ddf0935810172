"""What is asked of ``plan``, from its command line."""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from conf.cli import Refused
from conf.models import catalogue
from conf.planning.slo import Slo
from policies.registry import POLICIES

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
BYTES = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6}

TRIED = ("recompute", "swap", "mirage")
"""Policies that a server could be given today, and the one that lends layers; python -m sim policies lists all."""

EXAMPLES = """
examples:
  python -m sim plan --models llama_3_8b*2,opt_13b --hardware h100_sxm --trace azure_code.csv --slo-ttft 2s
  python -m sim plan --models ./Qwen3-8B/config.json --hardware h200 --rate 4 --lengths sharegpt --report plan.html

Anything else of the configuration is changed by KEY=VALUE, as for run:
  python -m sim plan +experiment=exec_c1 compute=table --policies recompute,mirage --caps 0.3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to ``plan``.

    Attributes:
        models: of the catalogue or configs, ``NAME*2`` twice; empty: the mix that the overrides name.
        hardware: a name, or a YAML file; ``None``: what the overrides name.
        n_gpus: alike, each with all of the models and an even part of the requests.
        hbm_bytes: in place of the hardware's.
        rate_per_s: that is to be served; ``None``: nothing is said of it.
        arrivals: of ``conf/arrivals``, where there is no trace.
        lengths: of ``conf/lengths``, or PROMPT:OUTPUT; ``None``: the trace's own.
        caps: shares of a model's layers that a policy with a cap may lend; ``None``: as an experiment has it, or some.
        n_requests: of each seed; ``None``: as many as the promise needs.
        overrides: as Hydra takes them.
    """

    models: tuple[str, ...]
    hardware: str | None
    n_gpus: int
    hbm_bytes: int | None
    memory_share: float
    context_tokens: int | None
    trace: Path | None
    rate_per_s: float | None
    arrivals: str
    lengths: str | None
    weights: tuple[float, ...]
    slo: Slo
    policies: tuple[str, ...]
    caps: tuple[float, ...] | None
    n_seeds: int
    n_requests: int | None
    precision: float
    jobs: int | None
    json: Path | None
    report: Path | None
    overrides: tuple[str, ...]


class _Parser(ArgumentParser):
    """Tells a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; --help lists the options")


def question(arguments: Sequence[str]) -> Question:
    """Read a command line.

    Raises:
        Refused: it is wrong.
    """
    given = _parser().parse_intermixed_args(list(arguments))
    try:
        return _asked(given)
    except ValueError as mistake:
        raise Refused(str(mistake)) from None


def _asked(given: Namespace) -> Question:
    if not given.models and not any(word.startswith(("mix=", "+experiment=")) for word in given.overrides):
        raise ValueError("no models; name some, as in --models llama_3_8b*2,opt_13b (or a Hugging Face config.json)")
    own_trace = any(word.startswith("arrivals=") for word in given.overrides)
    if given.models and given.trace is None and given.rate is None and given.lengths is None and not own_trace:
        raise ValueError("no requests; give --trace FILE, or --rate and --lengths, as in --rate 4 --lengths sharegpt")
    if given.trace is not None and not given.trace.is_file():
        raise ValueError(f"no file {given.trace}; name a trace (python -m traces formats lists what is read)")
    return Question(
        models=given.models,
        hardware=given.hardware,
        n_gpus=given.gpus,
        hbm_bytes=given.hbm,
        memory_share=given.memory_share,
        context_tokens=given.context,
        trace=given.trace,
        rate_per_s=given.rate,
        arrivals=given.arrivals,
        lengths=given.lengths,
        weights=given.weights,
        slo=Slo(ttft_s=given.slo_ttft, tbt_s=given.slo_tbt, share=given.slo_share, gap=given.slo_gap),
        policies=given.policies,
        caps=given.caps,
        n_seeds=given.seeds,
        n_requests=given.requests,
        precision=given.precision,
        jobs=given.jobs,
        json=given.json,
        report=given.report,
        overrides=tuple(given.overrides),
    )


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="python -m sim plan",
        description="Does lending weights to the KV cache pay with these models, this traffic and this GPU? With which "
        "policy and cap, how much KV does it buy, what does it cost between tokens, up to which rate does each "
        "policy keep a promise (SLO), and what binds?",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings to change", action=_KeyValue)
    served = parser.add_argument_group("what is served, on what")
    add = served.add_argument
    known = ", ".join(catalogue())
    add("--models", type=_words, default=(), metavar="NAME[*N],...", help=f"config.json files, or of {known}")
    add("--hardware", metavar="NAME|FILE", help="a machine of conf/hardware, or such a file (gh200_paper)")
    add("--gpus", type=_count, default=1, metavar="N", help="alike, with even parts of the requests (1)")
    add("--hbm", type=_bytes, metavar="GiB", help="memory of the GPU, in place of the machine's: 60GiB")
    add("--memory-share", type=_share, default=0.9, metavar="X", help="of it, for all models together (0.9)")
    add("--context", type=_count, metavar="TOKENS", help="longest request (each model's own, at most 32768)")
    traffic = parser.add_argument_group("the requests")
    add = traffic.add_argument
    add("--trace", type=Path, metavar="FILE", help="of any format that python -m traces formats lists")
    add("--rate", type=_positive, metavar="R", help="requests/s of all models, that are to be served")
    add("--arrivals", default="poisson", metavar="NAME", help="without a trace: of conf/arrivals (poisson)")
    add("--lengths", metavar="NAME|P:O", help="of conf/lengths, or so many prompt and output tokens (the trace's)")
    add("--weights", type=_numbers, default=(), metavar="W,...", help="parts of the requests by model (even)")
    promise = parser.add_argument_group("the promise")
    add = promise.add_argument
    add("--slo-ttft", type=_seconds, default=2.0, metavar="TIME", help="to the first token (2s)")
    add("--slo-tbt", type=_seconds, default=0.1, metavar="TIME", help="between tokens (100ms)")
    add("--slo-gap", choices=("mean", "largest"), default="mean", help="gap of a request that is meant (mean)")
    add("--slo-share", type=_share, default=0.9, metavar="X", help="of the requests that get both (0.9)")
    work = parser.add_argument_group("how it is found out")
    add = work.add_argument
    add(
        "--policies",
        type=_policies,
        default=TRIED,
        metavar="NAME,...",
        help="the baseline first (recompute,swap,mirage)",
    )
    add("--caps", type=_numbers, metavar="X,...", help="shares of layers (0.1,0.25,0.5, or what an experiment sets)")
    add("--seeds", type=_seeds, default=5, metavar="N", help="draws, or windows of the trace (5)")
    add("--requests", type=_count, metavar="N", help="of each of these (as many as the promise needs, 600 or more)")
    add("--precision", type=_share, default=0.02, metavar="X", help="of a rate (0.02)")
    add("--jobs", type=_count, metavar="N", help="processes (as many as cores)")
    add("--json", type=Path, metavar="FILE", help="write the answer as a JSON document, too")
    add("--report", type=Path, metavar="FILE", help="write it as an HTML page, too")
    return parser


class _KeyValue(Action):
    """Takes KEY=VALUE words only."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: object, option: object = None) -> None:
        del option
        words = [str(value) for value in cast("list[object]", values)] if isinstance(values, list) else []
        for word in words:
            if "=" not in word:
                parser.error(f"{word} is neither an option nor KEY=VALUE")
        setattr(namespace, self.dest, words)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _policies(text: str) -> tuple[str, ...]:
    names = _words(text)
    for name in names:
        if name not in POLICIES:
            raise ArgumentTypeError(f"no policy {name}; there are {', '.join(POLICIES)}")
    if not names or POLICIES[names[0]].lends:
        raise ArgumentTypeError("the first policy is the baseline and must not lend, as recompute")
    return names


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number") from None


def _positive(text: str) -> float:
    if not 0 < (value := _number(text)) < float("inf"):
        raise ArgumentTypeError(f"{text} must be a finite number above 0")
    return value


def _share(text: str) -> float:
    if not 0 < (value := _number(text)) <= 1:
        raise ArgumentTypeError(f"{text} is outside (0, 1]")
    return value


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(_positive(word) for word in _words(text))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def _seeds(text: str) -> int:
    if not 2 <= (value := _count(text)) <= 20:
        raise ArgumentTypeError(f"{text} is outside 2..20: an interval needs several")
    return value


def _with_unit(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    found = re.fullmatch(r"([0-9.]+)\s*([a-zA-Z]+)", text)
    if found is None or found[2] not in units:
        raise ArgumentTypeError(f"{text!r} must be a number with one of {', '.join(units)}, as in {example}")
    return _positive(found[1]) * units[found[2]]


def _seconds(text: str) -> float:
    return _with_unit(text, SECONDS, "100ms")


def _bytes(text: str) -> int:
    return round(_with_unit(text, BYTES, "60GiB"))

"""``python -m traces make OUT``: a synthetic trace from the fits and tables that come with this package.

Either requests (``--lengths``) or whole sessions (``--sessions``), whose first turns arrive by the same processes and
whose later turns follow a think time after the answer before: those can be replayed in a closed loop only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

from policies.types import NS_PER_S
from traces.cli import Parser
from traces.sessions.made import load_session_fit, session_fits
from traces.workload.arrivals import compress
from traces.workload.lengths import LengthSettings, length_tables, lengths_of
from traces.workload.sources import ArrivalSettings, fits, source_of
from traces.workload.streams import random_stream
from traces.writing.canonical import Line, require_writable, write

PROCESSES = ("poisson", "gamma")


def made(
    arrivals: ArrivalSettings,
    *,
    lengths: LengthSettings | None,
    sessions: str | None,
    seed: int,
    n: int | None = None,
    duration_s: float | None = None,
    max_turns: int | None = None,
) -> Iterator[Line]:
    """Make a trace.

    Args:
        arrivals: of requests, or of first turns.
        lengths: of requests; ``None`` for sessions.
        sessions: name of a fit of conversations; ``None`` for requests.
        n: requests or sessions.
        duration_s: the last arrives before it.

    Raises:
        ValueError: a setting is unknown, or nothing says when to end.
    """
    if n is None and duration_s is None:
        raise ValueError("the trace has no end; give --n or --duration")
    end_ns = round((duration_s or 0) * NS_PER_S)
    times = _times(arrivals, seed)
    bounded = islice(times if duration_s is None else takewhile(lambda time_ns: time_ns < end_ns, times), n)
    if sessions is not None:
        drawn = load_session_fit(sessions).sessions(random_stream(seed, "lengths"), max_turns)
        for time_ns, session in zip(bounded, drawn, strict=False):
            for number, turn in enumerate(session.turns):
                yield Line(
                    arrival_ns=None if number else time_ns,
                    n_prompt_tokens=turn.n_prompt_tokens,
                    n_output_tokens=turn.n_output_tokens,
                    session=session.name,
                    think_ns=turn.think_ns if number else None,
                )
        return
    assert lengths is not None  # one of both
    pairs = lengths_of(lengths, random_stream(seed, "lengths"))
    assert pairs is not None  # not of rows of a trace
    for time_ns, (n_prompt, n_output) in zip(bounded, pairs, strict=False):
        yield Line(time_ns, n_prompt, n_output)


def _times(arrivals: ArrivalSettings, seed: int) -> Iterator[int]:
    source = source_of(arrivals)
    factor = 1.0 if arrivals.rate is None else arrivals.rate / source.mean_rate_per_s
    scaled = compress(source.arrivals(random_stream(seed, "arrivals")), factor)
    return (time_ns for time_ns, _ in scaled)


def main(arguments: Sequence[str]) -> int:
    """Carry out ``make``.

    Raises:
        ValueError: the command line is wrong, or the file cannot be written.
    """
    parser = Parser(prog="python -m traces make", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="ends in .csv or .jsonl, or with .gz behind")
    parser.add_argument("--arrivals", choices=(*PROCESSES, *fits()), default="poisson", help="a process or a fit")
    parser.add_argument("--rate", type=float, metavar="N", help="requests or sessions a second")
    parser.add_argument("--cv", type=float, metavar="N", help="spread of the gaps of gamma")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--lengths", choices=length_tables(), help="a data set")
    what.add_argument("--sessions", choices=session_fits(), help="a kind of conversation")
    parser.add_argument("--spearman", type=float, default=0.0, help="rank correlation of prompt and output (0)")
    parser.add_argument("--max-turns", type=int, metavar="N", help="of a session")
    parser.add_argument("--n", type=int, metavar="N", help="requests or sessions")
    parser.add_argument("--duration", type=float, metavar="S", help="seconds in which they arrive")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="0 or more (0)")
    parser.add_argument("--force", action="store_true", help="write over OUT")
    options = parser.parse_args(arguments)
    require_writable(options.out, is_forced=options.force)
    for name in ("n", "duration", "max_turns"):
        if getattr(options, name) is not None and not getattr(options, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)} must be above 0")
    lines = made(
        _arrivals(options.arrivals, options.rate, options.cv),
        lengths=_lengths(options.lengths, options.spearman),
        sessions=options.sessions,
        seed=options.seed,
        n=options.n,
        duration_s=options.duration,
        max_turns=options.max_turns,
    )
    print(f"{options.out}: {write(options.out, lines)} requests")
    return 0


def _arrivals(name: str, rate: float | None, cv: float | None) -> ArrivalSettings:
    if name in PROCESSES:
        return ArrivalSettings(kind=name, rate=rate, cv=cv)
    return ArrivalSettings(kind=fits()[name], fit=name, rate=rate, cv=cv)


def _lengths(table: str | None, spearman: float) -> LengthSettings | None:
    return None if table is None else LengthSettings(kind="table", table=table, spearman=spearman)

"""The workloads on which simulators are timed, as overrides of ``python -m sim run``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
"""Where traces lie if they are at hand: beside the repository."""

AZURE_CODE = DATA / "azure_code_2023.csv.gz"
AZURE_CODE_ROWS = 8_819

C1_SATURATION_PER_S = 7.0
"""Requests/s that C1 with MIRAGE serves when 3,000 arrive at once (``arrivals=poisson arrivals.rate=1000``)."""

_ALONE = ("+experiment=fixed", "~lengths.constant")  # the same model and machine under other lengths
_ONE_RUN = (
    "workload.duration_s=null",
    "output.figures=false",
    "keep=[steps,decisions]",
    "parallel.jobs=1",
)

NO_STEPS = "keep=[decisions]"
"""Override that leaves the table of steps out as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A workload of one run.

    Attributes:
        text: what it is, for a person.
        overrides: all but the number of requests.
        most_requests: it has no more.
    """

    text: str
    overrides: tuple[str, ...]
    most_requests: int | None = None

    def command_line(self, n_requests: int) -> list[str]:
        """Give the overrides of the run with so many requests."""
        return [*self.overrides, *_ONE_RUN, f"workload.n_requests={n_requests}"]


FIXED = Timed(text="512 prompt and 128 output tokens, 4 requests/s", overrides=("+experiment=fixed",))

WORKLOADS = {
    "fixed": FIXED,
    "azure": Timed(
        text="lengths of the Azure code trace, from its fitted table, 2 requests/s",
        overrides=(*_ALONE, "lengths=[azure_code]", "arrivals.rate=2", "workload.overlong=clip"),
    ),
    "azure_trace": Timed(
        text="the Azure code trace itself, at 2 requests/s",
        overrides=(
            *_ALONE,
            "arrivals=azure",
            f"arrivals.path={AZURE_CODE}",
            "lengths=[file]",
            "arrivals.rate=2",
            "workload.overlong=clip",
        ),
        most_requests=AZURE_CODE_ROWS,
    ),
    "c1": Timed(
        text="three models in turn with MIRAGE, ShareGPT lengths, bursts, 0.8 of what it can serve",
        overrides=(
            "+experiment=c1",
            "compare=[mirage]",
            "lengths=[sharegpt]",
            f"arrivals.rate={0.8 * C1_SATURATION_PER_S:g}",
        ),
    ),
}


def at_hand() -> dict[str, Timed]:
    """Give the workloads whose data is there."""
    return {name: timed for name, timed in WORKLOADS.items() if name != "azure_trace" or AZURE_CODE.exists()}


def doubled_output() -> tuple[Timed, Timed]:
    """Give two workloads that keep as many requests in the batch, the second with twice the output tokens."""
    twice = ("+experiment=fixed", "arrivals.rate=2", "lengths.constant.n_output_tokens=256")
    return FIXED, Timed(text="512 prompt and 256 output tokens, 2 requests/s", overrides=twice)

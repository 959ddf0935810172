"""Hold steps with cycling layers against the recurrence that the simulator plays.

    python -m bench.pipeline_gpu --tier host --out pipeline_host.json     master copies in host memory
    python -m bench.pipeline_gpu --tier peer --out pipeline_peer.json     in another GPU's HBM
    python -m bench.pipeline_gpu --tier peer --memfd                      the stand-in on any machine: does it run?

One OPT-13b lends itself 1 to 12 of its layers through one slot and through two, with the executor's own changes,
slots, streams and graphs. A step lasts from the end of the one before to its own, by the device's events. The
recurrence is given what was measured without cycling layers, shortly before: the layers' time, the rest of a step, a
fetch alone, and by which shares layers and fetches take longer beside each other in such steps. The link binds where
the recurrence has layers wait. Beside the shares stand the device's clock and power in each turn with and without
fetches: a device at its limit of power computes more slowly while it copies.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import get_args

from bench.clocks import Clocks, sampled
from bench.fit_roofline import read_shape
from bench.machine import gpu, machine, write
from executor.devices import World, open_driver, open_peer
from executor.memory.masters import Tier
from executor.models.step import Row
from executor.profiling.beside import Contention, Turn, fetch_ns, of_turns, steady, turns
from executor.profiling.grid import QUICK, WHOLE
from executor.profiling.machine import LinkRates, link_rates
from executor.profiling.specimen import Specimen, specimen
from executor.profiling.steps import ragged
from executor.vmm.driver import Driver
from policies.memory.ops import landed, transition
from policies.memory.residency import Loan, Residency, Target
from policies.remap.which_layers import evenly_spaced
from policies.types import GIB, MIB, NS_PER_S, HardwareProfile, LinkProfile
from sim.link import MILLION, Link
from sim.pipeline import Pipeline

MODEL, HBM_BYTES = "opt_13b", 80 * GIB
TINY_MODEL, TINY_HBM_BYTES, TINY_PAGE_BYTES = "tiny_opt", 64 * MIB, 4096
BATCHES = (1, 32, 64, 128)
PEER = 1
Written = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step: decodes of a mean context, or whole prompts."""

    n_seqs: int
    n_new: int
    context: int

    def rows(self, model: Specimen) -> list[Row]:
        """Its sequences on the device."""
        if self.n_new > 1:
            return model.rows([(self.n_new, 0)] * self.n_seqs)
        contexts = ragged(self.n_seqs, self.context, model.shape.max_context_tokens)
        return model.rows([(1, each - 1) for each in contexts])

    def __str__(self) -> str:
        return f"{self.n_seqs} x {self.n_new} new" + (f" at {self.context}" if self.n_new == 1 else "")


CASES: dict[Tier, tuple[Case, ...]] = {
    "host": (
        Case(n_seqs=64, n_new=1, context=512),
        Case(n_seqs=1, n_new=2048, context=2048),
        Case(n_seqs=2, n_new=2048, context=2048),
    ),
    "peer": (
        Case(n_seqs=32, n_new=1, context=64),
        Case(n_seqs=64, n_new=1, context=512),
        Case(n_seqs=128, n_new=1, context=384),
        Case(n_seqs=1, n_new=512, context=512),
        Case(n_seqs=1, n_new=1024, context=1024),
    ),
}
"""Steps from those where the link always binds to those where it hardly does."""

TINY_CASES = (Case(n_seqs=4, n_new=1, context=32), Case(n_seqs=1, n_new=64, context=64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What the recurrence is given: durations in ns, measured without cycling layers.

    Attributes:
        layers_ns: all layers of a step.
        rest_ns: from the end of its layers to the beginning of the next step's.
        fetch_ns: one layer's fetch, of several in a row.
        slowdown: share by which layers take longer beside fetches.
        copy_slowdown: share by which fetches take longer beside layers.
    """

    layers_ns: int
    rest_ns: int
    fetch_ns: int
    slowdown: float
    copy_slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A step with alpha lent layers, and what the recurrence says.

    Attributes:
        predicted_ms, error: beside the measured slowdowns.
        plain_ms, plain_error: as if copies and computation did not slow each other.
        is_bound: whether the recurrence has layers wait.
    """

    row: str = "step"
    tier: Tier
    case: str
    alpha: int
    n_slots: int
    step_ms: float
    predicted_ms: float
    error: float
    plain_ms: float
    plain_error: float
    is_bound: bool
    base_ms: float
    layer_us: float
    fetch_us: float
    slowdown: float
    copy_slowdown: float


def alone(model: Specimen, rows: Sequence[Row], beside: Contention) -> Alone:
    """Measure without cycling layers, with what was found beside fetches before."""
    step = steady(model, rows)
    return Alone(
        layers_ns=step.layers_ns,
        rest_ns=step.step_ns - step.layers_ns,
        fetch_ns=fetch_ns(model),
        slowdown=beside.compute,
        copy_slowdown=beside.copies,
    )


def target(n_layers: int, alpha: int, n_slots: int) -> Target:
    """Let alpha evenly spaced layers be lent to the model itself, the first ones of the cycle being the slots."""
    cycling = evenly_spaced(n_layers, alpha + n_slots)
    loans = tuple(Loan(home, 0) for home in cycling[n_slots:])
    return Target(cycling=cycling, n_slots=n_slots, loans=loans)


def cycling_ns(model: Specimen, rows: Sequence[Row], wanted: Target) -> int:
    """Lend, run steps, and bring every layer home again: a step's time."""
    mover, now = model.serving.mover, Residency.all_resident(model.shape.n_layers)
    ops, now = transition(0, now, wanted)
    mover.carry_out(ops)
    step_ns = steady(model, rows).step_ns
    ops, now = transition(0, now, Target())
    mover.carry_out(ops)
    while now.loading:
        for _, layer in mover.landed():
            ops, now = landed(0, now, layer)
            mover.carry_out(ops)
    return step_ns


def recurrence(n_layers: int, wanted: Target, given: Alone) -> tuple[float, bool]:
    """Play the simulator's recurrence: a steady step in ns, the mean of two, and whether its layers wait."""
    region_bytes = given.fetch_ns  # one byte a ns: the fetch takes exactly as long as was measured
    link = LinkProfile(h2d_bytes_per_s=NS_PER_S, d2h_bytes_per_s=NS_PER_S, joint_bytes_per_s=2 * NS_PER_S)
    slowed = Link(link, round(given.slowdown * MILLION), round(given.copy_slowdown * MILLION))
    pipeline = Pipeline([region_bytes] * n_layers, slowed)
    pipeline.set_cycle(wanted.cycling, wanted.cycling[: wanted.n_slots], 0)
    layers_ns = [given.layers_ns * (at + 1) // n_layers - given.layers_ns * at // n_layers for at in range(n_layers)]
    ends_ns, waits_ns = [0], [0]
    for _ in range(2 * n_layers):  # the transient has died out
        end_ns, wait_ns = pipeline.step(ends_ns[-1], layers_ns, given.rest_ns, 0)
        ends_ns.append(end_ns)
        waits_ns.append(wait_ns)
    return (ends_ns[-1] - ends_ns[-3]) / 2, waits_ns[-1] + waits_ns[-2] > 0


def told(case: Case, taken: Sequence[Turn], clocks: Clocks) -> Iterator[Written]:
    """The turns with and without fetches, as rows."""
    for nth, turn in enumerate(taken):
        mhz_watts = clocks.between(turn.began_ns, turn.ended_ns)
        mhz, watts = mhz_watts or (None, None)
        times = {"layers_us": round(turn.layers_ns / 1e3, 1), "fetch_us": round(turn.fetch_ns / 1e3, 1)}
        yield {"row": "turn", "case": str(case), "fetches": bool(nth % 2), **times, "sm_mhz": mhz, "watts": watts}


def measure(model: Specimen, tier: Tier, case: Case, alphas: Sequence[int], beside: Contention) -> Iterator[Measured]:
    """Measure one case at every alpha, through one slot and through two."""
    rows, n_layers = case.rows(model), model.shape.n_layers
    for alpha in alphas:
        given = alone(model, rows, beside)  # anew each time: clocks drift
        for n_slots in (1, 2):
            wanted = target(n_layers, alpha, n_slots)
            step_ns = cycling_ns(model, rows, wanted)
            predicted_ns, is_bound = recurrence(n_layers, wanted, given)
            plain_ns, _ = recurrence(n_layers, wanted, replace(given, slowdown=0.0, copy_slowdown=0.0))
            yield Measured(
                tier=tier,
                case=str(case),
                alpha=alpha,
                n_slots=n_slots,
                step_ms=round(step_ns / 1e6, 4),
                predicted_ms=round(predicted_ns / 1e6, 4),
                error=round(step_ns / predicted_ns - 1, 5),
                plain_ms=round(plain_ns / 1e6, 4),
                plain_error=round(step_ns / plain_ns - 1, 5),
                is_bound=is_bound,
                base_ms=round((given.layers_ns + given.rest_ns) / 1e6, 4),
                layer_us=round(given.layers_ns / n_layers / 1e3, 2),
                fetch_us=round(given.fetch_ns / 1e3, 2),
                slowdown=round(given.slowdown, 5),
                copy_slowdown=round(given.copy_slowdown, 5),
            )


def line(row: Measured) -> str:
    lent = f"{row.case:18} alpha {row.alpha:2} slots {row.n_slots}"
    times = f"{row.step_ms:8.3f} ms, recurrence {row.predicted_ms:8.3f}"
    return f"{lent}  {times} {row.error:+7.2%} (plain {row.plain_error:+7.2%}) {'link binds' if row.is_bound else ''}"


def summary(rows: Sequence[Measured]) -> Iterator[Written]:
    """Sum up where the link binds, and elsewhere: P90 and worst of the errors' sizes."""
    for is_bound in (True, False):
        for kind in ("error", "plain_error"):
            errors = sorted(abs(getattr(row, kind)) for row in rows if row.is_bound is is_bound)
            if errors:
                p90 = quantiles(errors, n=10, method="inclusive")[8] if len(errors) > 1 else errors[0]
                where = "link binds" if is_bound else "elsewhere"
                yield {"row": "summary", "where": where, "of": kind, "n": len(errors), "p90": p90, "worst": errors[-1]}


def open_device(world: World, tier: Tier, held: ExitStack) -> tuple[Driver, Driver | None, HardwareProfile]:
    """Open the device, and the peer if there is to be one."""
    is_gpu = world == "cuda"
    link = LinkProfile(h2d_bytes_per_s=1, d2h_bytes_per_s=1, joint_bytes_per_s=1)  # nothing reads it
    hardware = HardwareProfile(
        name="bench",
        hbm_bytes=HBM_BYTES if is_gpu else TINY_HBM_BYTES,
        hbm_bytes_per_s=1,
        page_bytes=TINY_PAGE_BYTES,
        link=link,
    )
    driver = held.enter_context(closing(open_driver(world, hardware)))
    hardware = replace(hardware, page_bytes=driver.granularity_bytes)
    peer = held.enter_context(closing(open_peer(world, hardware, PEER))) if tier == "peer" else None
    return driver, peer, hardware


def main() -> None:
    """Print rows as they are measured, then write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=get_args(Tier), default="host", help="where master copies are")
    parser.add_argument("--memfd", action="store_true", help="a tiny model on the CPU: does it run?")
    parser.add_argument("--alphas", type=int, nargs="+", help="lent layers; else 1 to 12")
    parser.add_argument("--cases", type=int, nargs="+", help="which of the tier's cases, from 0; else all")
    parser.add_argument("--out", type=Path, help="JSON file for all rows, rewritten after each case")
    given = parser.parse_args()
    tier: Tier = given.tier
    world: World = "memfd" if given.memfd else "cuda"
    grid = QUICK if given.memfd else replace(WHOLE, batches=BATCHES, tokens=(4096,))
    shape = read_shape(TINY_MODEL if given.memfd else MODEL)
    cases = TINY_CASES if given.memfd else CASES[tier]
    alphas = given.alphas or range(1, min(12, shape.n_layers - 2) + 1)
    done: list[Measured] = []
    turned: list[Written] = []
    gc.disable()  # a collection would be taken for a step
    with ExitStack() as held:
        clocks = held.enter_context(sampled())
        driver, peer, hardware = open_device(world, tier, held)
        model = held.enter_context(specimen(driver, shape, hardware, grid, n_masters=shape.n_layers, peer=peer))
        head = machine("memfd", "none") if given.memfd else machine(*gpu())
        rates: LinkRates = link_rates(model)
        print(f"{tier}: {rates}", flush=True)
        link: Written = {"row": "link", "tier": tier, **asdict(rates)}
        for number in given.cases or range(len(cases)):
            case = cases[number]
            taken = list(turns(model, case.rows(model)))
            beside = of_turns(taken, fetch_ns(model))
            turned += told(case, taken, clocks)
            print(f"{case}: {beside}", *turned[-len(taken) :], sep="\n  ", flush=True)
            for row in measure(model, tier, case, alphas, beside):
                print(line(row), flush=True)
                done.append(row)
            if given.out:
                write(given.out, head, [link, *turned, *map(asdict, done), *summary(done)])
    for each in summary(done):
        print(f"{each['where']:10} {each['of']:11} n {each['n']:3}  P90 {each['p90']:.2%}  worst {each['worst']:.2%}")


if __name__ == "__main__":
    main()

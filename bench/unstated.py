"""What MIRAGE's paper leaves open, and other answers to it: the ranges over which ``bench.sensitivity`` sweeps.

An answer is here if somebody who repeats the paper could have given it, and if it may move the claims of the
experiments that it names. What the paper states is not: even placement, m by the shorter step, Azure's code trace,
the shares of table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

Overrides = tuple[str, ...]

C1 = ("mirage/fig8_c1",)
C2 = ("mirage/fig8_c2", "mirage/fig9", "mirage/fig10")
BESIDE = ("mirage/fig12", "mirage/fig13")
PIE = ("mirage/fig14",)
E2E = (*C1, *C2, *BESIDE, *PIE)
MRU, SLOTS, REVERSION, CAP = "mirage/fig11", "mirage/fig15", "mirage/fig16", "mirage/fig17"
ABLATIONS = (MRU, SLOTS, REVERSION, CAP)
EVERY = E2E + ABLATIONS

TURNS = (*C1, *C2, MRU)
"""Of models that take turns."""

BURSTS = (*E2E, MRU, SLOTS)
"""Whose arrivals are Azure-like."""

RATED = (*C1, "mirage/fig8_c2", "mirage/fig9", *BESIDE, *PIE, MRU, SLOTS)
"""Whose rates are shares of what the baseline serves."""

SEEDED = (*C1, *C2)
"""Drawn three times; the others once."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that the paper leaves open, and another answer to it.

    Attributes:
        overrides: for every experiment.
        of: more of them for some.
        experiments: whose claims it may move.
    """

    kind: str
    text: str
    overrides: Overrides = ()
    of: tuple[tuple[str, Overrides], ...] = ()
    experiments: tuple[str, ...] = EVERY

    def overrides_of(self, experiment: str) -> Overrides:
        """All that it changes in an experiment."""
        return (*self.overrides, *dict(self.of).get(experiment, ()))


def _activations(n_bytes: int) -> tuple[tuple[str, Overrides], ...]:
    c1, c2, single = ("opt_13b", "llama_2_13b", "llama_3_8b"), ("opt_30b", "opt_6_7b"), ("opt_13b",)
    models = dict.fromkeys((*C1, *BESIDE, MRU), c1) | dict.fromkeys(C2, c2)
    models |= dict.fromkeys((*PIE, SLOTS, REVERSION, CAP), single)
    return tuple(
        (name, tuple(f"mix.models.{model}.activation_bytes={n_bytes}" for model in of)) for name, of in models.items()
    )


def _loads(text: str, *loads: float) -> Assumption:
    return Assumption("rate", text, (f"loads=[{','.join(map(str, loads))}]",), experiments=RATED)


def _peak(per_s: int, lasts_s: int) -> Assumption:
    def point(rate: int) -> str:
        return (
            f"{{arrivals.rate:{rate},arrivals.kind:poisson,arrivals.fit:null,workload.phase_s:[{lasts_s},200],"
            f"workload.phase_factors:[{per_s / rate:g},1],workload.duration_s:{lasts_s + 200}}}"
        )

    bursts = (
        "{arrivals.rate:10,arrivals.kind:modulated_poisson,arrivals.fit:azure_code_2023,workload.phase_s:[1,299],"
        "workload.phase_factors:[1,1],workload.duration_s:300}"
    )
    return Assumption(
        "peak before",
        f"{per_s} requests/s for {lasts_s} s",
        of=((REVERSION, (f"points=[{point(1)},{bursts}]",)), (CAP, (f"points=[{point(1)},{point(10)}]",))),
        experiments=(REVERSION, CAP),
    )


def _cap(percent: float) -> Assumption:
    setting = f"variants.capped.overrides.policy.mirage.max_remapped_fraction={percent / 100:g}"
    return Assumption("cap of figure 17", f"{percent:g} %", (setting,), experiments=(CAP,))


FREE = 10**18
"""Bytes/s of a link that costs nothing."""

AS_IT_IS = Assumption("as it is", "the common assumptions")

NOMINAL = Assumption("memory base", "96e9 bytes, the nominal size", ("hardware.hbm_bytes=96_000_000_000",))
POISSON = Assumption("arrivals", "Poisson", ("arrivals=poisson",), experiments=BURSTS)
FREE_LINK = Assumption(
    "link",
    "copies are free (a bound)",
    (f"hardware.link.h2d_bytes_per_s={FREE}", f"hardware.link.joint_bytes_per_s={FREE}", "policy.pie.copy_ns=0"),
)


def _both(one: Assumption, two: Assumption) -> Assumption:
    """Two that each move the end-to-end claims towards the paper, together."""
    text = f"{one.kind}: {one.text.partition(',')[0]}; {two.kind}: {two.text.partition(',')[0]}"
    return Assumption("two together", text, (*one.overrides, *two.overrides), experiments=E2E)


ASSUMPTIONS: Sequence[Assumption] = (
    AS_IT_IS,
    _loads("0.2 of what the baseline serves: off-peak as section 7.6.1 has it", 0.2),
    _loads("0.3, 0.45 and 0.6 of what the baseline serves", 0.3, 0.45, 0.6),
    _loads("0.7 and 0.8", 0.7, 0.8),
    _loads("1.5 and 1.8 of what the baseline serves", 1.5, 1.8),
    _loads("2 and 2.5 of what the baseline serves", 2, 2.5),
    Assumption("duration", "300 s of arrivals instead of 100", ("workload.duration_s=300",), experiments=BURSTS),
    Assumption("quantum", "20 ms", ("tenancy.quantum_s=0.02",), experiments=TURNS),
    Assumption("quantum", "1 s", ("tenancy.quantum_s=1",), experiments=TURNS),
    NOMINAL,
    Assumption(
        "memory base",
        "94.5 GiB, what PyTorch sees of a GH200",  # vllm-project/vllm issue 9630
        ("hardware.hbm_bytes=101_468_602_368",),
    ),
    Assumption("host time", "none", ("hardware.roofline.host_scale=0",)),
    Assumption("host time", "twice", ("hardware.roofline.host_scale=2",)),
    Assumption("activation reserve", "none", of=_activations(1)),
    Assumption("activation reserve", "1 GB a model", of=_activations(1_000_000_000)),
    Assumption(
        "division of arrivals",
        "a process of its own for each model",
        ("workload.division=per_model",),
        experiments=(*C1, *C2, *BESIDE, MRU),
    ),
    Assumption(
        "output length",
        "512 declared, longer ones are cut",
        ("workload.declared=fixed", "workload.declared_tokens=512"),
    ),
    POISSON,
    Assumption("arrivals", "another draw", ("++grid.seed=[3]",)),
    Assumption("arrivals", "Azure-like in figure 17, too", ("arrivals=azure_like",), experiments=(CAP,)),
    FREE_LINK,
    Assumption("link", "377 GB/s, as measured elsewhere", ("hardware.link.h2d_bytes_per_s=377_000_000_000",)),
    Assumption("sequences at once", "1024 instead of 256", ("serving.max_num_seqs=1024",)),
    Assumption("sequences at once", "128 instead of 256", ("serving.max_num_seqs=128",)),
    Assumption("prompts in pieces", "vLLM's option, off by default", ("serving.chunked_prefill=true",)),
    Assumption(
        "bound of active lending",
        "no stall (ours)",
        ("policy.mirage.active_bound=no_stall",),
        experiments=(*E2E, MRU, SLOTS, REVERSION),  # figure 17 is about the cap alone
    ),
    Assumption(
        "MIRAGE's cap",
        "25 % instead of 50",
        ("policy.mirage.max_remapped_fraction=0.25",),
        experiments=(*E2E, MRU, SLOTS, REVERSION),
    ),
    Assumption(
        "a lender's turn",
        "what it lent is taken back at once",
        ("policy.mirage.activation=migrate",),
        experiments=TURNS,
    ),
    Assumption("idle KV blocks", "shared by all models", ("serving.share_idle_kv=true",), experiments=TURNS),
    Assumption(
        "reversion",
        "as soon as a range is idle",
        ("policy.mirage.hysteresis_steps=1", "policy.mirage.spare_margin=0"),
        experiments=(*E2E, MRU, SLOTS, REVERSION),
    ),
    Assumption(
        "reversion",
        "128 steps after that",
        ("policy.mirage.hysteresis_steps=128",),
        experiments=(*E2E, MRU, SLOTS, REVERSION),
    ),
    Assumption("reversion", "on in figure 17, too", ("policy.mirage.reversion=true",), experiments=(CAP,)),
    Assumption("interference", "none under MPS", ("tenancy.interference=0",), experiments=("mirage/fig12",)),
    Assumption("interference", "40 % under MPS", ("tenancy.interference=0.4",), experiments=("mirage/fig12",)),
    Assumption("MIG", "equal shares of the SMs", ("tenancy.shares=[0.3,0.3,0.3]",), experiments=("mirage/fig13",)),
    Assumption("Pie", "ideal: copies cost their bytes alone", ("policy.pie.copy_ns=0",), experiments=PIE),
    Assumption(
        "Pie",
        "ideal, and 366 GB/s each way",  # of the two readings of section 3.2 the one that favours Pie
        ("policy.pie.copy_ns=0", "hardware.link.joint_bytes_per_s=732_000_000_000"),
        experiments=PIE,
    ),
    _peak(50, 20),
    _peak(200, 20),
    _peak(100, 60),
    *map(_cap, (5, 10, 20, 30, 50)),
    _both(NOMINAL, POISSON),
    _both(NOMINAL, FREE_LINK),
    _both(POISSON, FREE_LINK),
)


def with_trace(assumptions: Sequence[Assumption], path: Path) -> Sequence[Assumption]:
    """Add Azure's code trace itself, from its file, in the place of the process that is fitted to it."""
    trace = replace(POISSON, text="the code trace itself", overrides=("arrivals=azure", f"arrivals.path={path}"))
    return (*assumptions, trace)

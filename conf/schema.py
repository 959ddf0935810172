"""The configuration as frozen values: every key, its type and its range.

YAML gives the values, ``conf/editable.py`` lets OmegaConf fill them, ``conf/build.py``
works out what is to run. Settings that belong to one part of the program are declared
there and only named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conf.editable import CLASSES
from conf.parallel import Parallel
from policies.moe import MoeShape
from policies.policy import Policy
from policies.registry import POLICIES
from policies.setup import ServedModel, Serving
from traces.sessions.settings import SessionSettings
from traces.workload.lengths import LengthSettings
from traces.workload.sources import ArrivalSettings
from traces.workload.workload import WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bandwidths between host memory and HBM, and by which shares computation and copies slow each other.

    Attributes:
        copy_slowdown: measured between two H200s, 0 over PCIe; 0 where it was not measured.
        prefill_compute_slowdown, prefill_copy_slowdown: in steps with prompts; ``None``: as in other steps.
    """

    h2d_bytes_per_s: int
    d2h_bytes_per_s: int
    joint_bytes_per_s: int
    compute_slowdown: float
    copy_slowdown: float = 0.0
    prefill_compute_slowdown: float | None = None
    prefill_copy_slowdown: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Fitted compute constants of a machine: see ``sim/compute/roofline.py``."""

    gemm_s: float
    gemm_bandwidth_share: float
    gemm_flops_share: float
    mha_fixed_s: float
    mha_sequence_s: float
    mha_bandwidth_share: float
    gqa_fixed_s: float
    gqa_sequence_s: float
    gqa_bandwidth_share: float
    prefill_attention_s: float
    prefill_attention_flops_share: float
    small_ops_s: float
    head_s: float
    host_s: float
    host_sequence_s: float
    host_scale: float
    moe_bandwidth_share: float = 0.82
    moe_flops_share: float = 0.48


@dataclass(frozen=True, slots=True, kw_only=True)
class Vmm:
    """Driver time of unmap + map + set-access for a layer's handle and for a page: see ``sim/vmm.py``."""

    range_ns: int
    page_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The CPU as it attends to KV cache in host memory: see ``HardwareProfile``; ``None``: not known."""

    attention_bytes_per_s: int | None = None
    layer_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A GPU and its link to host memory, every number with its source in ``conf/hardware``.

    Attributes:
        unified: host and device share one memory, so that lending gains nothing: policies that lend are refused.
    """

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: int
    flops_per_s: int
    page_bytes: int
    link: Link
    roofline: Roofline
    vmm: Vmm
    unified: bool = False
    cpu: Cpu = field(default_factory=Cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Tensor-parallel ranks of one model: see ``sim/compute/moe.py``."""

    n_ranks: int
    n_per_link: int
    reduce_s: float
    reduce_bytes_per_s: int
    reduces_over_link: bool
    splits_regions: bool
    moe_bandwidth_share: float
    moe_flops_share: float
    delta_sequence_s: float
    delta_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """Which experts tokens are routed to: see ``sim/compute/routing.py``.

    Attributes:
        exponent: of ``zipf``.
        weights: of ``histogram``: how often each expert was chosen.
    """

    kind: Literal["uniform", "zipf", "histogram"] = "uniform"
    exponent: float | None = None
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.kind == "zipf") != (self.exponent is not None):
            raise ValueError(f"routing.kind={self.kind}: set exponent for zipf, and for nothing else")
        if (self.kind == "histogram") != bool(self.weights):
            raise ValueError(f"routing.kind={self.kind}: set weights for histogram, and for nothing else")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsModel:
    """One mixture-of-experts model on ranks.

    Attributes:
        share, activation_bytes: see ``ServedMoe``.
    """

    shape: MoeShape
    ranks: Ranks
    share: float
    activation_bytes: int
    routing: RoutingSettings = field(default_factory=RoutingSettings)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"mix.experts.share={self.share} is outside (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The models that share a GPU, by name; results count them in this order.

    Attributes:
        of: more of them, as ``conf/own_mix.py`` reads them: names of the catalogue or Hugging Face configs, each with
            its sizes, share and activations worked out.
        shares: of the HBM, one for each of these; none: worked out, too.
        memory_share: of the HBM, for all of these together (vLLM's ``gpu_memory_utilization``).
        context_tokens: the longest request of these; ``None``: as each model has it.
        experts: in place of models one mixture-of-experts model, which has its GPUs alone.
    """

    name: str
    models: Mapping[str, ServedModel] = field(default_factory=dict[str, ServedModel])
    of: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    memory_share: float = 0.9
    context_tokens: int | None = None
    experts: ExpertsModel | None = None

    def __post_init__(self) -> None:
        if self.experts is not None and self.models:
            raise ValueError("mix: experts have their GPUs alone; name no models beside them")
        if self.experts is None and not self.models:
            raise ValueError("mix.models is empty; name at least one there, or models of the catalogue in mix.of")
        for name, model in self.models.items():
            if not 0 < model.share <= 1:
                raise ValueError(f"mix.models.{name}.share={model.share} is outside (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """How the models share the GPU: see ``policies/serving/tenancy.py``.

    Attributes:
        kind: ``temporal``: in turns; ``mps``: all at once, sharing SMs and bandwidth; ``mig``: all at once, each on a
            fixed share of both. Under the last two models lend only to themselves; for the simulator.
        order, quantum_s: of turns.
        interference: under MPS the share by which a model computes longer while another does, beyond what they share.
        shares: under MIG of SMs and bandwidth, a number a model; empty: those of the mix, which divide the memory.
    """

    kind: Literal["temporal", "mps", "mig"]
    order: Literal["round_robin", "priority"] = "round_robin"
    quantum_s: float = 0.1
    interference: float = 0.0
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """The world in which an experiment runs.

    Attributes:
        world: ``sim``: the simulator. ``memfd``, ``cuda``: the executor, on this machine's CPU or GPU.
        vmm: how homes change hands: see ``sim/vmm.py``; the executor knows ``alias`` and ``range``.
        leaps: steps that repeat are submitted together; results are the same without.
        weights: for the executor: folders of safetensors by the name of the model; the others get random weights.
        tier: for the executor: where the master copies of lendable layers are kept: pinned ``host`` memory, or the HBM
            of another GPU, a ``peer``. The simulator knows the link of its hardware.
        peer: which GPU that is, as the driver counts; on a CPU memory as large as ``hardware.hbm_bytes`` stands in.
        ranks: for the executor: GPUs 0, 1, ... among which every model is divided (tensor parallelism); shares, HBM and
            link are those of one, and rank r fetches from GPU ``peer`` + r.
        rank_timeout_s: a rank that is wanted and silent for so long ends the run.

    Raises:
        ValueError: the peer is a GPU that serves, or a number is out of range.
    """

    world: Literal["sim", "memfd", "cuda"]
    vmm: Literal["alias", "range", "page"]
    leaps: bool
    weights: Mapping[str, str] = field(default_factory=dict[str, str])
    tier: Literal["host", "peer"] = "host"
    peer: int = 1
    ranks: int = 1
    rank_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"backend.ranks={self.ranks} must be at least 1")
        if self.rank_timeout_s <= 0:
            raise ValueError(f"backend.rank_timeout_s={self.rank_timeout_s} must be positive")
        if self.world == "sim" and self.ranks > 1:
            raise ValueError(f"backend.ranks={self.ranks}: the simulator divides no dense model; run the executor")
        if self.tier == "peer" and self.peer < self.ranks:
            raise ValueError(f"backend.peer={self.peer}: GPU {self.peer} serves; name another one")

    def refuse_for_experts(self) -> None:
        """Refuse what only dense models know.

        Raises:
            ValueError: ranks, or a peer, are set here.
        """
        if self.ranks > 1:
            raise ValueError(f"backend.ranks={self.ranks}: those of experts are mix.experts.ranks; set them there")
        if self.tier == "peer":
            raise ValueError("backend.tier=peer: experts are staged from host memory; set backend.tier=host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A policy under changed settings, compared under a name of its own.

    Attributes:
        policy: a name in ``policies/registry.py``.
        overrides: changes to any part of the configuration, nested as in YAML.
    """

    policy: str
    overrides: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where results go, and what is drawn from them.

    Attributes:
        root: folder in which experiments make theirs.
        folder: of this experiment. Runs that it holds complete are not done again.
        page: whether ``report.html`` is written, too; ``python -m sim report FOLDER`` does so later.
    """

    root: str
    folder: str
    figures: bool
    page: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSettings:
    """A timeline of each run for ui.perfetto.dev: see ``traces/timeline``.

    Attributes:
        window: seconds from and until; empty: none is written. A simulated run keeps what crosses its link then.
    """

    window: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.window and (len(self.window) != 2 or not 0 <= self.window[0] < self.window[1]):
            raise ValueError(f"timeline.window={list(self.window)} must be [FROM,UNTIL] in seconds, 0 <= FROM < UNTIL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """An experiment: systems compared under the same workloads.

    Attributes:
        lengths: distributions of request lengths by name; each is a workload of its own.
        rates: requests/s of all models together; each is a workload of its own. ``arrivals.rate``, if set, is the
            only one.
        rates_by_lengths: rates for each of the lengths, unless ``rates`` are given: short requests saturate a GPU
            later.
        loads: shares of ``saturations``: with them rates need not be given.
        saturations: requests/s that the baseline serves at most, for each of the lengths; from
            ``python -m sim saturation``.
        sessions: closed loops by name, each a workload of its own, in the place of arrivals and lengths.
        lengths_by_model: lengths of models, by their names in the mix, that differ from the run's.
        points: changes to the configuration, by dotted key, each of which is a workload of its own.
        figure: how the paper draws it, a name in ``conf/paper/figures.py``; with one there may be nothing to compare.
        compute: where the simulator takes compute times from: fitted constants, measured tables, or the measured
            operations that the package aiconfigurator-core carries (``sim/compute/op_table.py``).
        compute_tables: folder of these tables, or of a layer profile as LLMServingSim publishes them; ``None``:
            ``conf/tables/<hardware.name>``. With ``aiconfigurator`` the name of a GPU there; ``None``: the one that the
            hardware is, see ``conf/worlds.py``.
        compute_deviation: share by which the simulator's compute times are off, by a factor drawn with ``seed`` for
            each size of step: how sure is a result?
        policy: the settings of every policy, by name.
        compare: names of policies and variants, the baseline first.
        grid: values to combine, by dotted key: see ``conf/grid.py``.
        keep: tables that a run keeps besides requests and gaps; without ``memory`` the use of HBM is not sampled.
    """

    name: str
    seed: int
    hardware: Hardware
    mix: Mix
    arrivals: ArrivalSettings
    lengths: Mapping[str, LengthSettings]
    rates: tuple[float, ...]
    rates_by_lengths: Mapping[str, tuple[float, ...]]
    loads: tuple[float, ...] = ()
    saturations: Mapping[str, float] = field(default_factory=dict[str, float])
    lengths_by_model: Mapping[str, LengthSettings] = field(default_factory=dict[str, LengthSettings])
    points: tuple[Mapping[str, object], ...] = ()
    figure: str | None = None
    workload: WorkloadSettings
    sessions: Mapping[str, SessionSettings] = field(default_factory=dict[str, SessionSettings])
    serving: Serving
    tenancy: Tenancy
    backend: BackendSettings
    compute: Literal["roofline", "table", "aiconfigurator"] = "roofline"
    compute_tables: str | None = None
    compute_deviation: float = 0.0
    policy: Mapping[str, Policy] = field(metadata={CLASSES: POLICIES})
    compare: tuple[str, ...]
    variants: Mapping[str, Variant]
    grid: Mapping[str, object]
    keep: tuple[Literal["steps", "decisions", "memory"], ...]
    timeline: TimelineSettings
    output: Output
    parallel: Parallel

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must be at least 0")
        if not 0 <= self.compute_deviation <= 1:
            raise ValueError(f"compute_deviation={self.compute_deviation} must be a share from 0 to 1")
        for name, variant in self.variants.items():
            if name in self.policy:
                raise ValueError(f"variants.{name} has the name of a policy; give it another")
            if variant.policy not in self.policy:
                raise ValueError(f"variants.{name}.policy={variant.policy}; there are {', '.join(self.policy)}")
        systems = [*self.policy, *self.variants]
        for name in self.compare:
            if name not in systems:
                raise ValueError(f"compare: no policy or variant {name}; there are {', '.join(systems)}")

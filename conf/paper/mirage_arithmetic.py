"""MIRAGE's figures that follow from sizes and rates: links, capacities, load times, what a step hides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources import files

from conf.build import hardware_profile
from conf.carry_out import open_books
from conf.paper.collect import composed
from conf.paper.drawn import Drawn, Numbers
from conf.schema import Settings
from policies.remap.host_kv import attend_ns
from policies.remap.how_many import step_ns
from policies.remap.which_layers import evenly_spaced
from policies.types import GB, HardwareProfile, ModelShape, Work
from sim.compute.base import ComputeModel
from sim.factory import compute_models
from traces.plots.paper import Bars, Lines, draw

NS_PER_MS = 10**6

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Of the layers, as in figure 5."""

BATCHES = (1, 8, 16, 32, 48, 64, 85, 96, 128, 192, 256)
CONTEXT_TOKENS = 330
"""Mean context of a ShareGPT request half-way: 161 prompt and half of 338 output tokens (vLLM paper, Fig. 11)."""


@cache
def links() -> Mapping[str, Mapping[str, int]]:
    """Read conf/links.yaml."""
    import yaml

    return yaml.safe_load((files("conf") / "links.yaml").read_text(encoding="utf-8"))


def fig1b(drawn: Drawn) -> Numbers:
    """Figure 1(b): nominal bandwidth of the link, both directions."""
    both = {"A100 (PCIe 4)": "pcie4", "H100 (PCIe 5)": "pcie5", "GH200 (C2C)": "c2c_paper"}
    gb = {name: links()[key]["both"] / GB for name, key in both.items()}
    panel = Bars(
        title="CPU-GPU bandwidth", ylabel="GB/s, both directions", groups=[*gb], values={"nominal": [*gb.values()]}
    )
    draw("Figure 1(b)", [[panel]], drawn.figure)
    a100, h100, gh200 = gb.values()
    link = drawn.experiment.settings.hardware.link
    return {
        "gh200_over_h100": gh200 / h100,
        "gh200_over_a100": gh200 / a100,
        "read_only_gb_per_s": link.h2d_bytes_per_s / GB,
        "one_to_one_gb_per_s": link.joint_bytes_per_s / GB,
        "one_to_one_less": link.joint_bytes_per_s / link.h2d_bytes_per_s - 1,
    }


def fig4(drawn: Drawn) -> Numbers:
    """Figure 4: what two OPT-13b leave on an 80 GB H100, and what a third of their parameters adds."""
    settings = drawn.experiment.settings
    shape = _shapes(settings)[0]
    parameters_gb, hbm_gb = 2 * shape.total_bytes / GB, 80.0  # the paper counts 80 GB
    left_gb = hbm_gb - parameters_gb
    paper_left_gb = hbm_gb - 2 * round(shape.total_bytes / GB)
    names = ["no remapping", "a third remapped"]
    gained = (parameters_gb / 3 + left_gb) / left_gb
    capacity = Bars(
        title="memory for KV", ylabel="GB", groups=names, values={"arithmetic": [left_gb, left_gb * gained]}
    )
    row: list[Bars | Lines] = [capacity]
    numbers = {
        "parameters_gb": parameters_gb,
        "left_for_kv_gb": left_gb,
        "left_for_kv_gb_of_rounded_sizes": paper_left_gb,
        "capacity_gain": (2 * round(shape.total_bytes / GB) / 3 + paper_left_gb) / paper_left_gb,
    }
    if drawn.results:
        tokens = {system: drawn.mean(system, "output_tokens_per_s") for system in drawn.systems}
        row.append(
            Bars(
                title="two OPT-13b with an H100's link",
                ylabel="output tokens/s",
                groups=[""],
                values={system: [value] for system, value in tokens.items()},
            )
        )
        base = tokens[drawn.systems[0]]
        numbers |= {f"throughput_gain_{system}": value / base for system, value in tokens.items()}
    draw("Figure 4: two OPT-13b on an 80 GB H100", [row], drawn.figure)
    return numbers


def fig5a(drawn: Drawn) -> Numbers:
    """Figure 5(a): time of the CPU to attend to a batch against the time to load a share of the parameters."""
    shape = _shapes(drawn.experiment.settings)[0]
    machines = {"GH200": drawn.experiment.settings, "H100": composed("mirage/fig5a", ["hardware=h100_sxm"]).settings}
    panels: list[Lines] = []
    numbers: dict[str, float] = {}
    for name, settings in machines.items():
        hardware = hardware_profile(settings.hardware)
        cpu = {batch: _attend_ms(shape, hardware, batch) for batch in BATCHES}
        load = {share: _load_ms(shape, hardware, share) for share in SHARES}
        panels.append(
            Lines(
                title=name,
                xlabel="batch (330 tokens of context each)",
                ylabel="ms a step",
                values={"CPU attention": ([*cpu], [*cpu.values()])},
                levels={f"load {share:.0%}": ms for share, ms in load.items()},
            )
        )
        numbers |= {f"cpu_ms_{name}_{batch}": ms for batch, ms in cpu.items()}
        numbers |= {f"load_ms_{name}_{round(100 * share)}": ms for share, ms in load.items()}
        n_bytes = round(0.3 * shape.n_layers) * shape.layer_bytes
        freed_ms = attend_ns(n_bytes, shape.n_layers, hardware) / NS_PER_MS
        numbers[f"cpu_ms_{name}_for_what_30_frees"] = freed_ms
    draw("Figure 5(a): CPU attention against loading parameters, OPT-13b", [panels], drawn.figure)
    return numbers


def fig5b(drawn: Drawn) -> Numbers:
    """Figure 5(b): computation of a decode step against the transfers of a remapped share, by batch."""
    settings = drawn.experiment.settings
    shape, hardware = _shapes(settings)[0], hardware_profile(settings.hardware)
    compute = _compute(settings)[0]
    step_ms = {batch: _compute_ms(shape, compute, batch) for batch in BATCHES}
    load = {share: _load_ms(shape, hardware, share) for share in SHARES}
    hidden = {batch: _hidden_share(shape, hardware, compute, batch) for batch in range(1, 257)}
    average = _average_batch(drawn)
    row = [
        Lines(
            title="a decode step, and loading a share",
            xlabel="batch (330 tokens of context each)",
            ylabel="ms",
            values={"computation": ([*step_ms], [*step_ms.values()])},
            levels={f"load {share:.0%}": ms for share, ms in load.items()},
        ),
        Lines(
            title="share of the layers that a step hides",
            xlabel="batch",
            ylabel="% of the layers",
            values={"no stall": ([*hidden], [100 * share for share in hidden.values()])},
        ),
    ]
    draw("Figure 5(b): what a decode step hides, OPT-13b", [row], drawn.figure)
    loaded_ms = load[0.3]
    return {
        "average_batch": average,
        "hidden_percent_at_average_batch": 100
        * min(1.0, _compute_ms(shape, compute, round(average)) / (loaded_ms / 0.3)),
        "no_stall_percent_at_average_batch": 100 * hidden[min(256, max(1, round(average)))],
        "batch_that_hides_30_percent": float(
            next(b for b in range(1, 257) if _compute_ms(shape, compute, b) >= loaded_ms)
        ),
        "golden_alpha": float(golden_alpha()),
        "layers_1_and_5": float([layer + 1 for layer in evenly_spaced(8, 2)] == [1, 5]),
    }


def golden_alpha(n_layers: int = 40, layer_ns: int = 427_000, fetch_ns: int = 4_000_000) -> int:
    """The first alpha at which two slots beat one, for a link as many times slower than HBM as a GH200's (5.4)."""

    def length_ns(alpha: int, n_slots: int) -> int:
        return step_ns(n_layers, evenly_spaced(n_layers, alpha + n_slots), n_slots, layer_ns, fetch_ns, 0)

    return next(alpha for alpha in range(1, n_layers - 2) if length_ns(alpha, 2) < length_ns(alpha, 1))


def table1(drawn: Drawn) -> Numbers:
    """Table 1: what each model of C1 and C2 gets of the GPU, and how many tokens of KV cache that is."""
    row: list[Bars | Lines] = []
    numbers: dict[str, float] = {}
    for mix in ("c1", "c2"):
        (run, *_) = composed(f"mirage/fig8_{mix}", ["loads=[1]", "figure=null"]).runs
        _, lanes = open_books(run)
        tokens = {lane.shape.name: lane.scheduler.pool.n_base * run.settings.serving.block_tokens for lane in lanes}
        numbers |= {f"kv_tokens_{mix}_{name}": float(n) for name, n in tokens.items()}
        numbers |= {f"share_{mix}_{model.shape.name}": model.share for model in run.models}
        row.append(
            Bars(
                title=mix, ylabel="tokens of KV cache", groups=[*tokens], values={"own": [*map(float, tokens.values())]}
            )
        )
    draw("Table 1: combinations", [row], drawn.figure)
    return numbers


def _average_batch(drawn: Drawn) -> float:
    """Sequences that decode together on average, over decode steps of all runs."""
    from traces.results.folder import read_run

    n_steps = n_seqs = 0
    for _, folder in drawn.runs(drawn.systems[0]):
        for steps in read_run(folder).pieces("steps", ("n_decode_seqs",)):
            decoding = steps["n_decode_seqs"][steps["n_decode_seqs"] > 0]
            n_steps, n_seqs = n_steps + len(decoding), n_seqs + int(decoding.sum())
    return n_seqs / n_steps


def _shapes(settings: Settings) -> list[ModelShape]:
    return [model.shape for model in settings.mix.models.values()]


def _compute(settings: Settings) -> list[ComputeModel]:
    hardware = settings.hardware
    profile = hardware_profile(hardware)
    return compute_models(
        _shapes(settings), profile, roofline=asdict(hardware.roofline), flops_per_s=hardware.flops_per_s, tables=None
    )


def _decodes(batch: int) -> Work:
    return Work(0, 0, 0, batch, batch * CONTEXT_TOKENS, batch)


def _compute_ms(shape: ModelShape, compute: ComputeModel, batch: int) -> float:
    return shape.n_layers * compute.layer_ns(_decodes(batch)) / NS_PER_MS


def _load_ms(shape: ModelShape, hardware: HardwareProfile, share: float) -> float:
    return round(share * shape.n_layers) * hardware.link.fetch_ns(shape.layer_bytes) / NS_PER_MS


def _attend_ms(shape: ModelShape, hardware: HardwareProfile, batch: int) -> float:
    return attend_ns(batch * CONTEXT_TOKENS * shape.kv_bytes_per_token, shape.n_layers, hardware) / NS_PER_MS


def _hidden_share(shape: ModelShape, hardware: HardwareProfile, compute: ComputeModel, batch: int) -> float:
    """Share of the layers that can be lent before a decode step gets longer, by our exact rule."""
    layer_ns, n = compute.layer_ns(_decodes(batch)), shape.n_layers
    rest_ns = compute.host_ns(_decodes(batch)) + compute.head_ns(_decodes(batch))
    fetch_ns = hardware.link.fetch_ns(shape.layer_bytes)
    alpha = 0
    while alpha + 2 < n and any(
        step_ns(n, evenly_spaced(n, alpha + 1 + slots), slots, layer_ns, fetch_ns, rest_ns) <= n * layer_ns + rest_ns
        for slots in (1, 2)
    ):
        alpha += 1
    return alpha / n

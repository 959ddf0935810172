"""A device with one model after the other: tables of durations, and what is the device's own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from executor.memory.masters import Tier
from executor.models.step import Row
from executor.profiling.beside import Contention, contention
from executor.profiling.expert_specimen import expert_specimen
from executor.profiling.expert_steps import measure_expert_steps
from executor.profiling.grid import Grid
from executor.profiling.loop import measure_launches, measure_loop
from executor.profiling.machine import (
    LinkRates,
    VmmTimes,
    copy_bytes_per_s,
    flops_per_s,
    link_rates,
    vmm_times,
)
from executor.profiling.specimen import Specimen, specimen
from executor.profiling.steps import measure_steps, ragged
from executor.vmm.driver import Driver
from policies.errors import HbmOverdrawn
from policies.moe import MoeShape
from policies.types import HardwareProfile, ModelShape
from traces.measured.device_tables import Padding, Part, Timing

BESIDE = (64, 512)
"""Sequences and mean context of the decode step that runs beside fetches."""

PREFILL_BESIDE = 1024
"""Tokens of the prompt that does: the largest that graphs hold, so that no launch is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """What is no model's, as it was measured with one of them; ``link`` is that to the memory of ``tier``.

    Attributes:
        decode_beside, prefill_beside: a decode step and a prompt beside fetches.
    """

    copy_bytes_per_s: int
    flops_per_s: int
    tier: Tier
    link: LinkRates
    decode_beside: Contention
    prefill_beside: Contention
    vmm_layer: VmmTimes
    vmm_page: VmmTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measured device."""

    machine: MachineProfile
    padding: Padding
    models: Sequence[tuple[ModelShape, Sequence[Timing]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertProfile:
    """What one rank of a mixture of experts was measured to take."""

    shape: MoeShape
    n_ranks: int
    padding: Padding
    timings: Sequence[Timing]


def profile(
    driver: Driver,
    hardware: HardwareProfile,
    shapes: Sequence[ModelShape],
    grid: Grid,
    tell: Callable[[str], None],
    *,
    peer: Driver | None = None,
) -> Profile:
    """Measure a device with each of the models in turn.

    Args:
        hardware: its memory and page size; nothing else of it is read.
        tell: hears of what is being measured.
        peer: in whose memory master copies are, instead of the host's: the link to it is measured.

    Raises:
        ValueError: a model does not fit the device.
    """
    machine: MachineProfile | None = None
    padding = Padding()
    models: list[tuple[ModelShape, Sequence[Timing]]] = []
    for shape in shapes:
        tell(f"{shape.name}: loading")
        with _told_if_too_large(shape), specimen(driver, shape, hardware, grid, peer=peer) as model:
            tell(f"{shape.name}: steps")
            timings = list(measure_steps(model))
            tell(f"{shape.name}: loop")
            timings += measure_loop(model, _heads(timings))
            if machine is None:
                tell("link, driver, rates")
                machine = _machine(driver, model, peer)
            padding = model.padding
            models.append((shape, timings))
    if machine is None:
        raise ValueError("no model to measure with; name one with --model")
    return Profile(machine=machine, padding=padding, models=models)


def profile_experts(
    driver: Driver,
    hardware: HardwareProfile,
    shape: MoeShape,
    n_ranks: int,
    grid: Grid,
    tell: Callable[[str], None],
) -> ExpertProfile:
    """Measure one rank of a mixture of experts; see ``profile``.

    Args:
        n_ranks: over which it is divided; what they sum up is left out.

    Raises:
        ValueError: it does not fit the device, or the executor does not serve its like.
    """
    tell(f"{shape.name}: loading")
    with _told_if_too_large(shape), expert_specimen(driver, shape, n_ranks, hardware, grid) as specimen:
        tell(f"{shape.name}: steps")
        timings = list(measure_expert_steps(specimen))
        tell(f"{shape.name}: loop")
        timings += measure_loop(specimen.model, _heads(timings))
        timings += measure_launches(specimen.model)
        return ExpertProfile(shape=shape, n_ranks=n_ranks, padding=specimen.model.padding, timings=timings)


def _heads(timings: Sequence[Timing]) -> list[Timing]:
    return [each for each in timings if each.part is Part.HEAD and each.n_seqs]


@contextmanager
def _told_if_too_large(shape: ModelShape | MoeShape) -> Generator[None]:
    """Turn a lack of memory into a line, and let go of what torch has kept from the model before."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
    try:
        yield
    except (torch.OutOfMemoryError, HbmOverdrawn) as refused:
        line = str(refused).splitlines()[0]
        raise ValueError(f"model {shape.name}: {line}; stop other programs on the device or leave it out") from refused


def _machine(driver: Driver, model: Specimen, peer: Driver | None) -> MachineProfile:
    grid = model.grid
    home_bytes = model.memory.models[0].home_bytes
    return MachineProfile(
        copy_bytes_per_s=copy_bytes_per_s(model),
        flops_per_s=flops_per_s(model),
        tier="host" if peer is None else "peer",
        link=link_rates(model),
        decode_beside=contention(model, _decode(model)),
        prefill_beside=contention(model, _prefill(model)),
        vmm_layer=vmm_times(driver, min(home_bytes, model.hardware.hbm_bytes // 100), grid.n_calls),
        vmm_page=vmm_times(driver, driver.granularity_bytes, grid.n_calls),
    )


def _decode(model: Specimen) -> list[Row]:
    n_seqs = min(BESIDE[0], max(model.grid.batches))
    longest, n_blocks = model.shape.max_context_tokens, len(model.blocks) // n_seqs
    context = max(1, min(BESIDE[1], longest // 2, (n_blocks - 1) * model.block_tokens))
    return model.rows([(1, each - 1) for each in ragged(n_seqs, context, longest)])


def _prefill(model: Specimen) -> list[Row]:
    n_tokens = min(PREFILL_BESIDE, model.shape.max_context_tokens, len(model.blocks) * model.block_tokens)
    return model.rows([(n_tokens, 0)])

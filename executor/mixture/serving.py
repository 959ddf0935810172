"""A mixture of experts on a device, or one rank's part of it: pages, weights, streams and a lane, put together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor.attention.choose import kernels_for
from executor.backend import ExecutorBackend
from executor.clock import Clock
from executor.experts.choose import expert_kernels_for
from executor.experts.packs import PackLayout
from executor.experts.tables import LiveTables
from executor.lane import Forward, ModelLane, Watch
from executor.memory.expert_memory import ExpertMemory
from executor.mixture.forward import MoeEager, MoeGraphed
from executor.mixture.plan import MoePlan
from executor.models.decode_buffers import BATCH_BUCKETS, DecodeBuffers, bucket_of
from executor.models.layout import new_region
from executor.models.moe import MoeLayer
from executor.models.moe_decoder import MoeDecoder, build_moe_decoder
from executor.models.moe_graphs import MoeGraphs
from executor.models.random_weights import fill_expert, fill_layer, random_outer
from executor.models.step import Row
from executor.ranks.lead import LedForward, LedMover, streams_for
from executor.ranks.load import load_expert_part, load_part
from executor.ranks.ranks import Leader, Ranks, together
from executor.ranks.voted import VotedExperts
from executor.tokens import PromptTokens
from executor.transfer.cuda import CudaStreams
from executor.transfer.expert_mover import ExpertMover
from executor.transfer.staging import Staging
from executor.transfer.streams import Streams
from executor.vmm.driver import Driver

AnyStreams = Streams[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeServing:
    """A model ready to be served, and all that it is made of.

    Attributes:
        layers: weights of each but for its experts, which ``tables`` find.
    """

    backend: ExecutorBackend
    memory: ExpertMemory
    mover: ExpertMover[Any] | LedMover
    staging: Staging[Any]
    streams: AnyStreams
    forward: Forward[Any]
    lane: ModelLane[Any]
    decoder: MoeDecoder
    layers: Sequence[MoeLayer]
    tables: LiveTables
    closing: ExitStack

    @property
    def forwards(self) -> tuple[Forward[Any]]:
        """How a step of the one lane runs."""
        return (self.forward,)

    @property
    def swaps(self) -> tuple[None]:
        """Its KV cache is never swapped."""
        return (None,)

    def close(self) -> None:
        """Wait for whatever the device still does, then give everything back."""
        self.closing.close()

    def __enter__(self) -> MoeServing:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_moe_serving(
    driver: Driver,
    plan: MoePlan,
    clock: Clock,
    *,
    watch: Watch | None = None,
    ranks: Ranks | None = None,
    poison: bool = False,
) -> MoeServing:
    """Put the model of a plan onto a device.

    Args:
        watch: sees every step, for tests.
        ranks: of which this device is one, if the model is divided among several; rank 0 leads the others.
        poison: see ``ExpertMemory``.

    Raises:
        HbmOverdrawn: HBM or host memory does not suffice, here or on another rank; nothing is held.
        DriverError: the driver refused something else; nothing is held.
        ValueError: weights cannot be read or do not fit; nothing is held.
    """
    device, extents = torch.device(driver.device), plan.extents
    with ExitStack() as closing:

        def fill() -> tuple[ExpertMemory, MoeDecoder, list[MoeLayer]]:
            memory = ExpertMemory(driver, extents, mode=plan.mode, poison=poison)
            closing.callback(memory.close)
            decoder, layers = _load(plan, memory, device, ranks)
            _finish(device)  # weights are there before another stream reads them
            return memory, decoder, layers

        memory, decoder, layers = together(ranks, fill)
        leader = ranks if isinstance(ranks, Leader) else None
        streams = streams_for(device, leader)
        tables = LiveTables(memory)
        _finish(device)
        masters = {layer: memory.masters(layer) for layer in range(extents.start.layout.n_layers)}
        staging: Staging[Any] = Staging(memory.buffers, masters, extents.group.n_bytes, streams)
        forward = _forward(decoder, layers, tables, memory, staging, streams, plan)
        mover: ExpertMover[Any] | LedMover
        mover = ExpertMover(VotedExperts(memory, ranks) if ranks else memory, staging, tables, streams)
        if leader:
            forward, mover = LedForward(0, forward, leader), LedMover(mover, leader)
        lane = ModelLane(
            0,
            forward,
            streams,
            PromptTokens(plan.seed, plan.spec.shape.vocab),
            block_tokens=plan.block_tokens,
            max_rows=plan.max_rows,
            pinned=driver.device != "cpu",
            watch=watch,
        )
        closing.callback(_finish, device)  # first of all when it is closed, whatever is under way
        _finish(device)
        return MoeServing(
            backend=ExecutorBackend([lane], mover, clock),
            memory=memory,
            mover=mover,
            staging=staging,
            streams=streams,
            forward=forward,
            lane=lane,
            decoder=decoder,
            layers=layers,
            tables=tables,
            closing=closing.pop_all(),
        )


def _load(
    plan: MoePlan, memory: ExpertMemory, device: torch.device, ranks: Ranks | None
) -> tuple[MoeDecoder, list[MoeLayer]]:
    """Bring layers into memory of torch, experts into packs, and copies of groups that may leave to the host."""
    spec, checkpoint, layers = plan.spec, plan.checkpoint, list[MoeLayer]()
    outer = checkpoint.load_outer(spec, device) if checkpoint else random_outer(spec, plan.seed, device)
    sum_ranks = ranks.sum if ranks else None
    decoder = build_moe_decoder(spec, outer, kernels_for(device), expert_kernels_for(device), sum_ranks)
    extents = memory.extents
    for layer in range(spec.shape.n_layers):
        region = new_region(decoder.outer.layout.n_bytes, device)
        if ranks:
            load_part(plan.whole, checkpoint, plan.seed, layer, decoder.outer.layout, region, ranks)
        elif checkpoint:
            checkpoint.load_layer(spec, decoder.outer.layout, layer, region)
        else:
            fill_layer(decoder.outer.layout, region, plan.seed, layer)
        layers.append(decoder.layer(region))
        _load_pack(plan, layer, 0, extents.fixed(layer), memory.fixed(layer), ranks)
    for group in extents.groups:
        _load_pack(plan, *group, extents.group, memory.home(group), ranks)
        memory.master(group).copy_(memory.home(group))
    return decoder, layers


def _load_pack(plan: MoePlan, layer: int, first: int, layout: PackLayout, region: Tensor, ranks: Ranks | None) -> None:
    """Bring consecutive experts into a pack."""
    gate_ups, downs = layout.gate_up(region), layout.down(region)
    for nth, expert in enumerate(range(first, first + layout.n_experts)):
        if ranks:
            part = gate_ups[nth], downs[nth]
            load_expert_part(plan.whole, plan.checkpoint, plan.seed, layer, expert, part, ranks)
        elif plan.checkpoint:
            plan.checkpoint.load_expert(plan.spec, layer, expert, gate_ups[nth], downs[nth])
        else:
            fill_expert(plan.spec, gate_ups[nth], downs[nth], plan.seed, layer, expert)


def _forward(
    decoder: MoeDecoder,
    layers: list[MoeLayer],
    tables: LiveTables,
    memory: ExpertMemory,
    staging: Staging[Any],
    streams: AnyStreams,
    plan: MoePlan,
) -> Forward[Any]:
    kv = memory.kv_blocks()
    eager = MoeEager(decoder, layers, tables, kv, staging, streams, plan.max_blocks)
    if not isinstance(streams, CudaStreams):
        return eager
    buckets = [bucket for bucket in BATCH_BUCKETS if bucket <= bucket_of(plan.max_rows)]
    buffers = DecodeBuffers(buckets[-1], plan.max_blocks, plan.block_tokens, kv.device)
    graphs = MoeGraphs(decoder, layers, tables.layers, buffers, kv, buckets[-1], streams.compute)
    for bucket in buckets:
        graphs.warm_up(bucket)
    _warm_up_prefills(eager, plan)
    _warm_up_mixed(eager, plan, buckets)
    return MoeGraphed(eager, graphs, buffers, tables, staging, streams)


def _warm_up_prefills(eager: MoeEager[Any], plan: MoePlan) -> None:
    """Run prompts of some lengths, so that no kernel is compiled while requests wait, and memory that lacks is missed.

    What they leave in the KV cache nobody reads.
    """
    size = plan.block_tokens
    longest = min(
        plan.max_prefill_tokens,
        size * min(plan.extents.kv.n_base_blocks, plan.max_blocks),
        plan.extents.spec.shape.max_context_tokens,
    )
    for n_tokens in {min(length, longest) for length in (size + 1, 2 * size, 256, longest)}:
        blocks = range(-(-n_tokens // size))
        eager.run([Row(token_ids=[0] * n_tokens, n_before=0, blocks=blocks)])


def _warm_up_mixed(eager: MoeEager[Any], plan: MoePlan, buckets: Sequence[int]) -> None:
    """Run a short prompt beside decodes likewise: by how many there are, to a power of two, their kernel differs.

    How often it splits contexts may differ once within such a range: its ends are run.
    """
    prompt = Row(token_ids=[0, 0], n_before=0, blocks=[0])
    for n_decodes in sorted({n for bucket in buckets for n in (bucket // 2 + 1, bucket) if n <= plan.max_rows}):
        eager.run([*[Row(token_ids=[0], n_before=0, blocks=[0])] * n_decodes, prompt])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

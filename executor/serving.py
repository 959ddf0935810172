"""Models on a device: pages, weights, streams and lanes, put together and taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from executor.attention.choose import kernels_for
from executor.backend import ExecutorBackend
from executor.clock import Clock
from executor.forward import Eager, Graphed
from executor.lane import Forward, ModelLane, Watch
from executor.memory.device import DeviceMemory
from executor.memory.masters import PeerMasters
from executor.memory.tensors import tensor_over
from executor.models.decode_buffers import BATCH_BUCKETS, DecodeBuffers, bucket_of
from executor.models.decoder import Decoder, build_decoder
from executor.models.graphs import DecodeGraphs, PrefillGraphs
from executor.models.prefill_buffers import TOKEN_BUCKETS, PrefillBuffers
from executor.models.random_weights import fill_layer, random_outer
from executor.models.step import Row
from executor.plan import ModelPlan, Plan
from executor.ranks.lead import LedForward, LedMover, LedSwapSpace, streams_for
from executor.ranks.load import load_part
from executor.ranks.ranks import Leader, Ranks, together
from executor.ranks.voted import VotedMemory
from executor.tokens import PromptTokens
from executor.transfer.cuda import CudaStreams
from executor.transfer.mover import StreamMover
from executor.transfer.slots import Slots
from executor.transfer.streams import Streams
from executor.transfer.swap import SwapSpace
from executor.vmm.driver import Driver

AnyStreams = Streams[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Models ready to be served, and all that they are made of.

    Attributes:
        forwards: how a step of each model runs.
        lanes: each model as the backend drives it.
        swaps: where swapped KV of each waits, ``None`` if none is ever swapped.
    """

    backend: ExecutorBackend
    memory: DeviceMemory
    mover: StreamMover[Any] | LedMover
    streams: AnyStreams
    slots: tuple[Slots[Any], ...]
    forwards: tuple[Forward[Any], ...]
    lanes: tuple[ModelLane[Any], ...]
    swaps: tuple[SwapSpace[Any] | None, ...]
    closing: ExitStack

    def close(self) -> None:
        """Wait for whatever the device still does, then give everything back."""
        self.closing.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_serving(
    driver: Driver,
    plan: Plan,
    clock: Clock,
    *,
    peer: Driver | None = None,
    watch: Watch | None = None,
    ranks: Ranks | None = None,
    poison: bool = False,
) -> Serving:
    """Put the models of a plan onto a device.

    Args:
        peer: in whose memory master copies are kept, instead of the host's.
        watch: sees every step, for tests.
        ranks: of which this device is one, if models are divided among several; rank 0 leads the others.
        poison: see ``DeviceMemory``.

    Raises:
        HbmOverdrawn: HBM or host memory does not suffice, here or on another rank; nothing is held.
        DriverError: the driver refused something else; nothing is held.
        ValueError: weights cannot be read or do not fit; nothing is held.
    """
    device = torch.device(driver.device)
    with ExitStack() as closing:
        masters = PeerMasters(peer, driver.device) if peer else None
        extents = [model.extents for model in plan.models]

        def fill() -> tuple[DeviceMemory, list[Decoder]]:
            memory = DeviceMemory(driver, extents, mode=plan.mode, masters=masters, poison=poison)
            closing.callback(memory.close)
            decoders = [_load(index, model, plan, memory, device, ranks) for index, model in enumerate(plan.models)]
            _finish(device)  # weights are there before another stream reads them
            return memory, decoders

        memory, decoders = together(ranks, fill)
        leader = ranks if isinstance(ranks, Leader) else None
        streams = streams_for(device, leader)
        slots = tuple(_slots(index, memory, streams) for index in range(len(plan.models)))
        forwards = tuple(
            _forward(decoder, index, model, memory, slots[index], streams)
            for index, (decoder, model) in enumerate(zip(decoders, plan.models, strict=True))
        )
        swaps = tuple(
            _swap(index, model, memory, streams, driver, closing, leader) for index, model in enumerate(plan.models)
        )
        mover = StreamMover(VotedMemory(memory, ranks) if ranks else memory, slots, streams)
        if leader:
            forwards = tuple(LedForward(lane, forward, leader) for lane, forward in enumerate(forwards))
            mover = LedMover(mover, leader)
        lanes = tuple(
            _lane(index, plan, forwards[index], streams, swaps[index], driver, watch)
            for index in range(len(plan.models))
        )
        closing.callback(_finish, device)  # first of all when it is closed, whatever is under way
        _finish(device)
        return Serving(
            backend=ExecutorBackend(lanes, mover, clock),
            memory=memory,
            mover=mover,
            streams=streams,
            slots=slots,
            forwards=forwards,
            lanes=lanes,
            swaps=swaps,
            closing=closing.pop_all(),
        )


def _load(
    index: int, model: ModelPlan, plan: Plan, memory: DeviceMemory, device: torch.device, ranks: Ranks | None
) -> Decoder:
    """Bring the weights of a model where they belong: layers into their homes, copies of them to their tier."""
    spec, seed = model.spec, len(plan.models) * plan.seed + index
    outer = model.checkpoint.load_outer(spec, device) if model.checkpoint else random_outer(spec, seed, device)
    decoder = build_decoder(spec, outer, kernels_for(device), ranks.sum if ranks else None)
    for layer in range(spec.shape.n_layers):
        home = memory.weights(index, layer)
        if ranks:
            load_part(model.whole, model.checkpoint, seed, layer, decoder.layout, home, ranks)
        elif model.checkpoint:
            model.checkpoint.load_layer(spec, decoder.layout, layer, home)
        else:
            fill_layer(decoder.layout, home, seed, layer)
        if layer in model.extents.lendable:
            memory.master(index, layer).copy_(home)
    return decoder


def _slots(index: int, memory: DeviceMemory, streams: AnyStreams) -> Slots[Any]:
    extents = memory.models[index]
    weights = [memory.weights(index, home) for home in range(extents.n_homes)]
    return Slots(weights, {layer: memory.master(index, layer) for layer in extents.lendable}, streams)


def _forward(
    decoder: Decoder, index: int, model: ModelPlan, memory: DeviceMemory, slots: Slots[Any], streams: AnyStreams
) -> Forward[Any]:
    weights = [memory.weights(index, home) for home in range(model.extents.n_homes)]
    kv = memory.kv_blocks(index, model.spec.dtype)
    eager = Eager(decoder, weights, kv, slots, streams, model.max_blocks)
    if not isinstance(streams, CudaStreams):
        return eager
    buckets = [bucket for bucket in BATCH_BUCKETS if bucket <= bucket_of(model.max_rows)]
    buffers = DecodeBuffers(buckets[-1], model.max_blocks, model.extents.block_tokens, kv.device)
    graphs = DecodeGraphs(decoder, buffers, kv, buckets[-1], streams.compute)
    for bucket in buckets:
        _capture(graphs, buffers, bucket, weights, streams)
    prefill_buffers = PrefillBuffers(model.max_blocks, model.extents.block_tokens, kv.device)
    prefill_graphs = PrefillGraphs(decoder, prefill_buffers, kv, streams.compute)
    for bucket in TOKEN_BUCKETS:
        prefill_graphs.warm_up(bucket, weights)
    _warm_up_prefills(eager, model)
    return Graphed(eager, (graphs, buffers), (prefill_graphs, prefill_buffers), weights, slots, streams)


def _capture(
    graphs: DecodeGraphs, buffers: DecodeBuffers, bucket: int, weights: Sequence[torch.Tensor], streams: CudaStreams
) -> None:
    """Run a step of padding from every home, so that none is captured while requests wait."""
    graphs.warm_up(bucket, weights[0])
    with streams.computing():
        buffers.clear(bucket)
    graphs.embed(bucket)
    for layer, region in enumerate(weights):
        graphs.layer(bucket, layer, region)
    graphs.head(bucket)


def _warm_up_prefills(eager: Eager[Any], model: ModelPlan) -> None:
    """Run prompts of some lengths, so that no kernel is compiled while requests wait, and memory that lacks is missed.

    What they leave in the KV cache nobody reads.
    """
    size = model.extents.block_tokens
    longest = min(model.spec.shape.max_context_tokens, model.extents.layout.n_base_blocks * size)
    for n_tokens in {min(length, longest) for length in (size + 1, 2 * size, longest)}:
        blocks = range(-(-n_tokens // size))
        eager.run([Row(token_ids=[0] * n_tokens, n_before=0, blocks=blocks)])


def _swap(
    index: int,
    model: ModelPlan,
    memory: DeviceMemory,
    streams: AnyStreams,
    driver: Driver,
    closing: ExitStack,
    leader: Leader | None,
) -> SwapSpace[Any] | None:
    if not model.n_host_blocks:
        return None
    n_bytes = model.n_host_blocks * model.extents.block_bytes
    address = driver.pin(n_bytes)
    closing.callback(driver.unpin, address)
    host = tensor_over(address, n_bytes, "cpu").view(model.n_host_blocks, model.extents.block_bytes)
    if leader:
        return LedSwapSpace(index, memory.kv(index), host, streams, leader)
    return SwapSpace(memory.kv(index), host, streams)


def _lane(
    index: int,
    plan: Plan,
    forward: Forward[Any],
    streams: AnyStreams,
    swap: SwapSpace[Any] | None,
    driver: Driver,
    watch: Watch | None,
) -> ModelLane[Any]:
    model = plan.models[index]
    return ModelLane(
        index,
        forward,
        streams,
        PromptTokens(plan.seed, model.spec.shape.vocab),
        block_tokens=model.extents.block_tokens,
        max_rows=model.max_rows,
        pinned=driver.device != "cpu",
        swap=swap,
        watch=watch,
    )


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

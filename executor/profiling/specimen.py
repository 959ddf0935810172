"""A model on the device, as the executor serves it, to be measured."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.attention.choose import kernels_for
from executor.attention.kernels import AttentionKernels
from executor.clock import Clock, HostClock
from executor.forward import Graphed
from executor.memory.device import DeviceMemory
from executor.mixture.forward import MoeGraphed
from executor.mixture.serving import MoeServing
from executor.models.decode_buffers import BATCH_BUCKETS
from executor.models.decoder import Decoder, build_decoder
from executor.models.random_weights import random_outer
from executor.models.rotary import Rotary
from executor.models.step import Row, StepInput, compose
from executor.plan import plan
from executor.profiling.grid import GRAPHED, Grid
from executor.profiling.stopwatch import Stopwatch
from executor.serving import Serving, open_serving
from executor.vmm.driver import Driver
from policies.lane import Lane
from policies.memory.ledger import Ledger
from policies.setup import ServedModel, open_lanes, open_ledger
from policies.setup import Serving as ServingSettings
from policies.types import GIB, HardwareProfile, ModelShape
from traces.measured.device_tables import Padding

SHARE = 0.94
"""Of the device's memory, for the model and its KV cache: the rest is the driver's, and the graphs'."""

N_MASTERS = 2
"""Layers with a master copy, for timing the link."""

SEED = 0


class NoAttention:
    """Attention that takes no time (``AttentionKernels``): nothing is stored, the output is the same every time."""

    def __init__(self, like: Tensor) -> None:
        self._attended = like

    def plan(self, step: StepInput) -> None:
        """Nothing to prepare."""

    def store(self, qkv: Tensor, kv: Tensor, layer: int, step: StepInput, rotary: Rotary | None) -> Tensor:  # noqa: ARG002
        """Look at Q as it is."""
        return qkv.unflatten(1, (-1, kv.shape[5]))[:, : self._attended.shape[1]]

    def decode(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:  # noqa: ARG002
        """Give what lies ready."""
        return self._attended[: query.shape[0]]

    def prefill(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """Likewise."""
        return self.decode(query, kv, layer, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A model that fills the device: its layers at home, the rest KV blocks with random contents.

    Attributes:
        serving: what a run would be given.
        open_books: gives a loop ledger and lanes for it, with nothing in them.
        decoder: the model once more, for parts of a step; of a mixture of experts what is around its layers.
        bare: the same without attention.
        kernels: those of ``decoder``.
        clock: the one that ``serving`` goes by.
        regions: the weights of each layer; none of a mixture of experts.
        kv: the KV range.
        blocks: ids of the blocks that have pages, shuffled.
    """

    shape: ModelShape
    hardware: HardwareProfile
    serving: Serving | MoeServing
    open_books: Callable[[], tuple[Ledger, Sequence[Lane]]]
    decoder: Decoder
    bare: Decoder
    kernels: AttentionKernels
    regions: Sequence[Tensor]
    kv: Tensor
    blocks: Sequence[int]
    max_blocks: int
    clock: Clock
    stopwatch: Stopwatch
    grid: Grid

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.kv.device

    @property
    def memory(self) -> DeviceMemory:
        """Its layers, which may be lent; a mixture of experts has none such."""
        memory = self.serving.memory
        assert isinstance(memory, DeviceMemory)
        return memory

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.kv.shape[3]

    @property
    def padding(self) -> Padding:
        """How its steps are padded."""
        match self.serving.forwards[0]:
            case Graphed():
                return GRAPHED
            case MoeGraphed():
                return Padding(decode_seqs=BATCH_BUCKETS)
            case _:
                return Padding()

    @property
    def n_layers_timed(self) -> int:
        """Layers over which parts are timed."""
        return min(self.grid.n_layers, self.shape.n_layers)

    def rows(self, sequences: Sequence[tuple[int, int]]) -> list[Row]:
        """Put sequences, (new tokens, tokens before), onto blocks scattered over the KV range.

        Raises:
            ValueError: there are too few blocks.
        """
        rows: list[Row] = []
        first = 0
        for n_new, n_before in sequences:
            n_blocks = -(-(n_new + n_before) // self.block_tokens)
            token_ids = [(first + token) % self.shape.vocab for token in range(n_new)]
            rows.append(Row(token_ids=token_ids, n_before=n_before, blocks=self.blocks[first : first + n_blocks]))
            first += n_blocks
        if first > len(self.blocks):
            raise ValueError(f"model {self.shape.name}: {first} KV blocks are wanted, there are {len(self.blocks)}")
        return rows

    def holds(self, sequences: Sequence[tuple[int, int]]) -> bool:
        """Whether there are blocks and positions for these sequences."""
        n_blocks = sum(-(-(new + before) // self.block_tokens) for new, before in sequences)
        longest = max(new + before for new, before in sequences)
        return n_blocks <= len(self.blocks) and longest <= self.shape.max_context_tokens

    def step(self, rows: Sequence[Row]) -> StepInput:
        """Compose a step of them."""
        with self.serving.streams.computing():
            step = compose(rows, block_tokens=self.block_tokens, max_blocks=self.max_blocks, device=self.device)
            return step


@contextmanager
def specimen(
    driver: Driver,
    shape: ModelShape,
    hardware: HardwareProfile,
    grid: Grid,
    *,
    n_masters: int = N_MASTERS,
    peer: Driver | None = None,
) -> Generator[Specimen]:
    """Load a model with random weights, the device to itself; leaving gives everything back.

    Args:
        n_masters: layers, from the first on, that have a master copy.
        peer: in whose memory, instead of the host's.

    Raises:
        ValueError: it does not fit.
    """
    settings = ServingSettings(max_num_seqs=max(grid.batches))
    served = ServedModel(shape=shape, share=SHARE, activation_bytes=_activation_bytes(shape, grid))

    def open_books() -> tuple[Ledger, list[Lane]]:
        ledger = open_ledger([served], hardware)
        return ledger, open_lanes([served], ledger, hardware, settings, preemption="recompute")

    ledger, (lane,) = open_books()
    planned = plan(
        [served],
        ledger,
        [lane.layout],
        hardware,
        settings,
        vmm="alias",
        preemption="recompute",
        lendable=[range(min(n_masters, shape.n_layers))],
        weights={},
        seed=SEED,
    )
    (model,) = planned.models
    if driver.device == "cpu":
        torch.set_num_threads(1)  # as a run does
    clock = HostClock()
    with open_serving(driver, planned, clock, peer=peer) as serving:
        device, spec = torch.device(driver.device), model.spec
        kernels = kernels_for(device)
        decoder = build_decoder(spec, random_outer(spec, SEED, device), kernels)
        n_rows = max(*grid.tokens, *grid.batches)
        like = torch.randn(n_rows, shape.n_heads, shape.head_dim, device=device).to(spec.dtype)
        blocks = list(range(lane.layout.n_base_blocks))
        random.Random(SEED).shuffle(blocks)
        kv = serving.memory.kv_blocks(0, spec.dtype)
        kv[: len(blocks)].normal_()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what follows is on other streams
        yield Specimen(
            shape=shape,
            hardware=hardware,
            serving=serving,
            open_books=open_books,
            decoder=decoder,
            bare=build_decoder(spec, decoder.outer, NoAttention(like)),
            kernels=kernels,
            regions=[serving.memory.weights(0, layer) for layer in range(shape.n_layers)],
            kv=kv,
            blocks=blocks,
            max_blocks=model.max_blocks,
            clock=clock,
            stopwatch=Stopwatch(serving.streams, device, grid.n_repeats),
            grid=grid,
        )


def _activation_bytes(shape: ModelShape, grid: Grid) -> int:
    """Room for the largest step, for embeddings and head a second time, for what torch, graphs and cuBLAS keep."""
    n_rows = max(*grid.tokens, *grid.batches)
    of_a_row = 8 * shape.hidden + 4 * shape.ffn + 4 * (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
    logits = 4 * max(grid.batches) * shape.vocab
    room = shape.dtype_bytes * (n_rows * of_a_row + logits)
    return shape.other_bytes + room + (2 * GIB if shape.other_bytes > GIB // 4 else room)

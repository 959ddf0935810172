"""A mixture of experts on the device, as the executor serves it, to be measured."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.attention.choose import kernels_for
from executor.clock import HostClock
from executor.experts.packs import ExpertTable
from executor.mixture.plan import plan_moe
from executor.mixture.serving import open_moe_serving
from executor.models.moe import MoeLayer
from executor.models.moe_decoder import MoeDecoder, build_moe_decoder
from executor.models.spec import DecoderSpec
from executor.profiling.grid import Grid
from executor.profiling.loop import PROMPT_TOKENS
from executor.profiling.specimen import SEED, SHARE, NoAttention, Specimen
from executor.profiling.stopwatch import Stopwatch
from executor.vmm.driver import Driver
from policies.lane import Lane
from policies.memory.ledger import Ledger
from policies.moe import MoeShape
from policies.moe_setup import ServedMoe, open_moe
from policies.recompute import Recompute
from policies.setup import Serving as ServingSettings
from policies.types import GIB, HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpecimen:
    """One rank of a mixture of experts that fills the device, every expert at home.

    Attributes:
        model: all that it has in common with dense models.
        decoder: the model, ``bare`` the same without attention.
        layers: weights of each layer but for its experts, which ``tables`` find.
    """

    model: Specimen
    decoder: MoeDecoder
    bare: MoeDecoder
    layers: Sequence[MoeLayer]
    tables: Sequence[ExpertTable]

    @property
    def timed(self) -> Sequence[int]:
        """Layers over which parts are timed: from the whole depth, for the router of each sees other values."""
        n_layers, n_timed = len(self.layers), self.model.n_layers_timed
        return [nth * n_layers // n_timed for nth in range(n_timed)]


@contextmanager
def expert_specimen(
    driver: Driver, shape: MoeShape, n_ranks: int, hardware: HardwareProfile, grid: Grid
) -> Generator[ExpertSpecimen]:
    """Load one rank's part of a model with random weights, the device to itself; leaving gives everything back.

    Args:
        n_ranks: over which the model is divided; what they sum up is left out.

    Raises:
        ValueError: it does not fit, or the executor does not serve its like.
    """
    settings = ServingSettings(
        scheduler="vllm_v1",
        max_num_seqs=max(grid.batches),
        max_num_batched_tokens=_most_tokens(grid),
        chunked_prefill=True,
        prefix_caching=True,
        async_scheduling=False,
    )
    served = ServedMoe(
        shape=shape, n_ranks=n_ranks, share=SHARE, activation_bytes=_activation_bytes(shape, n_ranks, grid)
    )

    def open_books() -> tuple[Ledger, list[Lane]]:
        ledger, lane = open_moe(served, hardware, settings, Recompute())
        return ledger, [lane]

    ledger, (lane,) = open_books()
    plan = plan_moe(served, ledger, lane, hardware, settings, vmm="alias", weights={}, seed=SEED)
    if driver.device == "cpu":
        torch.set_num_threads(1)  # as a run does
    clock = HostClock()
    with open_moe_serving(driver, plan, clock) as serving:
        device, spec, decoder = torch.device(driver.device), plan.spec, serving.decoder
        bare = build_moe_decoder(spec, decoder.outer.outer, NoAttention(_like(spec, grid, device)), decoder.kernels)
        blocks = list(range(1, plan.extents.kv.n_base_blocks))  # block 0 is never given out
        random.Random(SEED).shuffle(blocks)
        kv = serving.memory.kv_blocks()
        kv[: plan.extents.kv.n_base_blocks].normal_()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # what follows is on other streams
        model = Specimen(
            shape=spec.shape,
            hardware=hardware,
            serving=serving,
            open_books=open_books,
            decoder=decoder.outer,
            bare=bare.outer,
            kernels=kernels_for(device),
            regions=(),
            kv=kv,
            blocks=blocks,
            max_blocks=plan.max_blocks,
            clock=clock,
            stopwatch=Stopwatch(serving.streams, device, grid.n_repeats),
            grid=grid,
        )
        yield ExpertSpecimen(
            model=model, decoder=decoder, bare=bare, layers=serving.layers, tables=serving.tables.layers
        )


def _like(spec: DecoderSpec, grid: Grid, device: torch.device) -> Tensor:
    return torch.randn(_most_tokens(grid), spec.shape.n_heads, spec.shape.head_dim, device=device).to(spec.dtype)


def _most_tokens(grid: Grid) -> int:
    """Of a step: those of the grid, or the prompts of as many requests as the loop is given at a time, together."""
    return max(*grid.tokens, max(PROMPT_TOKENS) * max(*grid.loops, *grid.prefill_loops), grid.n_eager_tokens)


def _activation_bytes(shape: MoeShape, n_ranks: int, grid: Grid) -> int:
    """Room for the largest step, for what is routed in the timed layers, and for what torch, graphs and cuBLAS keep.

    Embeddings and head are whole on every rank, where ``rest_bytes`` has a share of them.
    """
    n_rows = _most_tokens(grid)
    of_an_expert = 2 * shape.n_active * (shape.expert_ffn // n_ranks + shape.hidden)
    of_a_row = (8 + grid.n_layers) * shape.hidden + of_an_expert + 6 * shape.n_heads * shape.head_dim
    logits = 4 * max(grid.batches) * shape.vocab
    room = shape.dtype_bytes * (n_rows * of_a_row + logits)
    copied = shape.dtype_bytes * shape.other_params - shape.dtype_bytes * shape.other_params // n_ranks
    return copied + room + (2 * GIB if shape.rest_bytes(n_ranks) > GIB // 4 else room)

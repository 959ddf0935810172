"""A rank's part of the weights of a layer or of an expert, out of the whole that a single rank would have."""

from __future__ import annotations

import torch
from torch import Tensor

from executor.models.checkpoint import Checkpoint
from executor.models.decoder import layer_layout
from executor.models.layout import LayerLayout, new_region
from executor.models.random_weights import fill_expert, fill_layer
from executor.models.spec import DecoderSpec
from executor.ranks.ranks import Ranks
from executor.ranks.shards import expert_splits, take_part


def load_part(
    whole: DecoderSpec,
    checkpoint: Checkpoint | None,
    seed: int,
    layer: int,
    layout: LayerLayout,
    to: Tensor,
    ranks: Ranks,
) -> None:
    """Load a whole layer beside its home, and keep a rank's part of it.

    Args:
        whole: the whole model.
        checkpoint: where its weights are, ``None`` for random ones.
        layout: of the rank's part.
        to: its region, uint8.

    Raises:
        ValueError: weights cannot be read.
    """
    whole_layout = layer_layout(whole)
    region = new_region(whole_layout.n_bytes, to.device)
    if checkpoint:
        checkpoint.load_layer(whole, whole_layout, layer, region)
    else:
        fill_layer(whole_layout, region, seed, layer)
    take_part(whole, (whole_layout, layout), region, to, ranks.rank, ranks.n_ranks)


def load_expert_part(
    whole: DecoderSpec,
    checkpoint: Checkpoint | None,
    seed: int,
    layer: int,
    expert: int,
    to: tuple[Tensor, Tensor],
    ranks: Ranks,
) -> None:
    """Load a whole expert beside its home, and keep a rank's part of it.

    Args:
        whole: the whole model.
        checkpoint: where its weights are, ``None`` for random ones.
        to: gate above up, and down, of the rank's part.

    Raises:
        ValueError: weights cannot be read.
    """
    assert whole.experts is not None, "a mixture of experts"
    hidden, ffn, device = whole.shape.hidden, whole.experts.ffn, to[0].device
    gate_up = torch.empty(2 * ffn, hidden, dtype=whole.dtype, device=device)
    down = torch.empty(hidden, ffn, dtype=whole.dtype, device=device)
    if checkpoint:
        checkpoint.load_expert(whole, layer, expert, gate_up, down)
    else:
        fill_expert(whole, gate_up, down, seed, layer, expert)
    for part, split, tensor in zip(to, expert_splits(whole.experts), (gate_up, down), strict=True):
        part.copy_(split.part(tensor, ranks.rank, ranks.n_ranks))

"""A rank's part of the weights of a layer, out of the whole layer that a single rank would have."""

from __future__ import annotations

from torch import Tensor

from executor.models.checkpoint import Checkpoint
from executor.models.decoder import layer_layout
from executor.models.layout import LayerLayout, new_region
from executor.models.random_weights import fill_layer
from executor.models.spec import DecoderSpec
from executor.ranks.ranks import Ranks
from executor.ranks.shards import take_part


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

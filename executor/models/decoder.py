"""A decoder as functions of where its weights lie now: embed, one layer from any region, head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from executor.attention.kernels import AttentionKernels
from executor.attention.paged import PagedAttention
from executor.models.layout import LayerLayout
from executor.models.llama import LlamaLayer, llama_layout, run_llama_layer
from executor.models.moe import moe_layout
from executor.models.opt import OptLayer, opt_layout, run_opt_layer
from executor.models.rotary import rotary_tables
from executor.models.spec import DecoderSpec, Family, SumRanks
from executor.models.step import StepInput

OPT_POSITION_OFFSET = 2
"""OPT's table of positions starts with two rows that no position uses. Source: transformers, modeling_opt.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterWeights:
    """Weights outside the layers; they never move.

    Attributes:
        token_embedding: (vocab, hidden).
        position_embedding: (max_context_tokens + 2, hidden) for OPT, ``None`` for Llama.
        norm_weight: (hidden,) of the last norm.
        norm_bias: (hidden,) for OPT, ``None`` for Llama.
        head: (vocab, hidden); the token embedding itself where they are tied.
    """

    token_embedding: Tensor
    position_embedding: Tensor | None
    norm_weight: Tensor
    norm_bias: Tensor | None
    head: Tensor


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model without its layers' weights, which are given to each call.

    Nothing here allocates memory that outlives a call, waits for the device, or keeps state;
    all of it can be captured into CUDA graphs if the kernels can.

    Args:
        sum_ranks: where this is one rank's part of a model.
    """

    spec: DecoderSpec
    layout: LayerLayout
    outer: OuterWeights
    attention: PagedAttention
    sum_ranks: SumRanks | None = None

    def embed(self, step: StepInput) -> Tensor:
        """Return the residual stream before the first layer: (n_rows, hidden)."""
        hidden = functional.embedding(step.token_ids, self.outer.token_embedding)
        if self.outer.position_embedding is None:
            return hidden
        return hidden + functional.embedding(step.positions + OPT_POSITION_OFFSET, self.outer.position_embedding)

    def layer(self, region: Tensor) -> OptLayer | LlamaLayer:
        """Look at a region, wherever it is, as the weights of a layer.

        Raises:
            ValueError: it is too small, not bytes, or starts at an odd address.
        """
        views = self.layout.views(region)
        match self.spec.family:
            case Family.OPT:
                return OptLayer(**views)
            case Family.LLAMA:
                return LlamaLayer(**views)
            case Family.MOE:
                raise ValueError(
                    f"model {self.spec.shape.name}: a layer with experts runs in two pieces, as MoeDecoder"
                )

    def run_layer(
        self, weights: OptLayer | LlamaLayer, layer: int, hidden: Tensor, kv: Tensor, step: StepInput
    ) -> None:
        """Add one layer to the residual stream, in place, and store its K and V.

        Args:
            layer: its index, which says where in a block its K and V go.
            hidden: (n_rows, hidden).
            kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim).
        """
        match weights:
            case OptLayer():
                run_opt_layer(weights, layer, hidden, kv, step, self.attention, self.spec.norm_eps, self.sum_ranks)
            case LlamaLayer():
                run_llama_layer(weights, layer, hidden, kv, step, self.attention, self.spec.norm_eps, self.sum_ranks)

    def logits(self, hidden: Tensor, step: StepInput) -> Tensor:
        """Return the logits of the sampled rows: (n_sampled, vocab)."""
        return functional.linear(self.last_norm(hidden[step.sampled]), self.outer.head)

    def last_norm(self, hidden: Tensor) -> Tensor:
        """Normalise rows of the residual stream as the head wants them."""
        size, outer, eps = (self.spec.shape.hidden,), self.outer, self.spec.norm_eps
        if self.spec.family is Family.OPT:
            return functional.layer_norm(hidden, size, outer.norm_weight, outer.norm_bias, eps)
        return functional.rms_norm(hidden, size, outer.norm_weight, eps)

    @torch.inference_mode()
    def run(self, regions: Sequence[Tensor], kv: Tensor, step: StepInput) -> tuple[Tensor, Tensor]:
        """Run a whole step at once, each layer from its region.

        Returns:
            The residual stream after the last layer, (n_rows, hidden), and the logits of the
            sampled rows, (n_sampled, vocab).
        """
        hidden = self.embed(step)
        for layer, region in enumerate(regions):
            self.run_layer(self.layer(region), layer, hidden, kv, step)
        return hidden, self.logits(hidden, step)


def greedy(logits: Tensor) -> Tensor:
    """Return the likeliest token of each row: (n_rows,) int64."""
    return logits.argmax(dim=-1)


def layer_layout(spec: DecoderSpec) -> LayerLayout:
    """Return how a layer of this model lies in its region.

    Raises:
        ValueError: it does not fit into the model's ``layer_bytes``.
    """
    match spec.family:
        case Family.OPT:
            layout = opt_layout(spec)
        case Family.LLAMA:
            layout = llama_layout(spec)
        case Family.MOE:
            layout = moe_layout(spec)
    if layout.n_bytes > spec.shape.layer_bytes:
        raise ValueError(
            f"model {spec.shape.name}: a layer takes {layout.n_bytes} bytes, layer_bytes says {spec.shape.layer_bytes}"
        )
    return layout


def build_decoder(
    spec: DecoderSpec, outer: OuterWeights, kernels: AttentionKernels, sum_ranks: SumRanks | None = None
) -> Decoder:
    """Put a decoder together on the device of its outer weights."""
    device = outer.token_embedding.device
    rotary = rotary_tables(spec, device) if spec.family is not Family.OPT else None
    return Decoder(spec, layer_layout(spec), outer, PagedAttention(kernels, rotary), sum_ranks)

"""A decoder with experts as functions of where its weights lie now: each layer in two pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.attention.kernels import AttentionKernels
from executor.experts.kernels import ExpertKernels
from executor.experts.packs import ExpertTable
from executor.models.decoder import Decoder, OuterWeights, build_decoder
from executor.models.moe import MoeLayer, Routed, attend_and_route
from executor.models.spec import DecoderSpec, ExpertSpec, SumRanks
from executor.models.step import StepInput


@dataclass(frozen=True, slots=True)
class MoeDecoder:
    """A model without the weights of its layers and experts, which are given to each call.

    Attributes:
        outer: what is before and behind the layers.
    """

    outer: Decoder
    kernels: ExpertKernels

    @property
    def spec(self) -> DecoderSpec:
        """What it computes."""
        return self.outer.spec

    @property
    def experts(self) -> ExpertSpec:
        """The experts of every layer."""
        assert self.spec.experts is not None
        return self.spec.experts

    def layer(self, region: Tensor) -> MoeLayer:
        """Look at a region as the weights of a layer but for its experts.

        Raises:
            ValueError: it is too small, not bytes, or starts at an odd address.
        """
        return MoeLayer(**self.outer.layout.views(region))

    def attend_and_route(self, weights: MoeLayer, layer: int, hidden: Tensor, kv: Tensor, step: StepInput) -> Routed:
        """Run the first piece of a layer; see ``moe.attend_and_route``."""
        outer = self.outer
        return attend_and_route(
            weights, layer, hidden, kv, step, outer.attention, self.kernels, self.spec, outer.sum_ranks
        )

    def run_experts(self, hidden: Tensor, routed: Routed, table: ExpertTable) -> None:
        """Run the second piece of a layer: add what the experts say to the residual stream, in place."""
        if self.outer.sum_ranks is None:
            self.kernels.run(hidden, routed, table, self.experts)
            return
        said = torch.zeros_like(hidden)
        self.kernels.run(said, routed, table, self.experts)
        self.outer.sum_ranks(said)
        hidden += said

    @torch.inference_mode()
    def run(
        self, regions: Sequence[Tensor], tables: Sequence[ExpertTable], kv: Tensor, step: StepInput
    ) -> tuple[Tensor, Tensor]:
        """Run a whole step at once, each layer from its region and its experts from where its table says.

        Returns:
            The residual stream after the last layer, (n_rows, hidden), and the logits of the
            sampled rows, (n_sampled, vocab).
        """
        hidden = self.outer.embed(step)
        for layer, (region, table) in enumerate(zip(regions, tables, strict=True)):
            routed = self.attend_and_route(self.layer(region), layer, hidden, kv, step)
            self.run_experts(hidden, routed, table)
        return hidden, self.outer.logits(hidden, step)


def build_moe_decoder(
    spec: DecoderSpec,
    outer: OuterWeights,
    attention: AttentionKernels,
    experts: ExpertKernels,
    sum_ranks: SumRanks | None = None,
) -> MoeDecoder:
    """Put a decoder together on the device of its outer weights."""
    return MoeDecoder(build_decoder(spec, outer, attention, sum_ranks), experts)

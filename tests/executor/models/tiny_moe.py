"""Mixtures of experts small enough for a CPU, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.attention.choose import kernels_for
from executor.attention.sdpa import SdpaKernels
from executor.experts.choose import expert_kernels_for
from executor.experts.loop import LoopKernels
from executor.experts.packs import ExpertTable, PackLayout, table_of
from executor.models.checkpoint import Checkpoint
from executor.models.decoder import OuterWeights
from executor.models.layout import new_region
from executor.models.moe_decoder import MoeDecoder, build_moe_decoder
from executor.models.random_weights import fill_expert, fill_layer, random_outer
from executor.models.spec import DecoderSpec
from executor.models.step import Row, compose
from tests.executor.models.tiny import BLOCK_TOKENS, CPU, MAX_BLOCKS, unwritten_kv

PACK_EXPERTS = 2


@dataclass(frozen=True)
class TinyMoe:
    """A decoder with its layers' regions, its experts and a KV range that nothing has been written to (all NaN)."""

    decoder: MoeDecoder
    regions: Sequence[Tensor]
    tables: Sequence[ExpertTable]
    packs: Sequence[Tensor]
    kv: Tensor

    def step(self, *rows: Row) -> tuple[Tensor, Tensor]:
        """Run one step: residual stream of all rows, logits of the sampled ones."""
        composed = compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=self.kv.device)
        return self.decoder.run(self.regions, self.tables, self.kv, composed)


def random_moe(spec: DecoderSpec, device: torch.device, seed: int = 0) -> TinyMoe:
    """A model with random weights, made on the CPU: the same on every device."""
    assert spec.experts is not None
    layout = pack_layout(spec)
    outer = random_outer(spec, seed, CPU)
    cpu = build_moe_decoder(spec, outer, SdpaKernels(), LoopKernels())
    regions: list[Tensor] = []
    packs: list[Tensor] = []
    tables: list[ExpertTable] = []
    for layer in range(spec.shape.n_layers):
        region = new_region(cpu.outer.layout.n_bytes, CPU)
        fill_layer(cpu.outer.layout, region, seed, layer)
        for weights in cpu.outer.layout.views(region).values():
            weights.mul_(4)  # far enough from 0 that neither attention nor routing is an average
        mine = [new_region(layout.n_bytes, CPU) for _ in range(spec.experts.n_experts // PACK_EXPERTS)]
        for expert in range(spec.experts.n_experts):
            pack, nth = divmod(expert, PACK_EXPERTS)
            fill_expert(spec, layout.gate_up(mine[pack])[nth], layout.down(mine[pack])[nth], seed, layer, expert)
        regions.append(new_region(region.numel(), device).copy_(region))
        there = [new_region(layout.n_bytes, device).copy_(pack) for pack in mine]
        packs += there
        tables.append(table_of(layout, there))
    moved = OuterWeights(
        token_embedding=outer.token_embedding.to(device),
        position_embedding=None,
        norm_weight=outer.norm_weight.to(device),
        norm_bias=None,
        head=outer.head.to(device),
    )
    decoder = build_moe_decoder(spec, moved, kernels_for(device), expert_kernels_for(device))
    return TinyMoe(decoder, regions, tables, packs, unwritten_kv(spec).to(device))


def pack_layout(spec: DecoderSpec) -> PackLayout:
    """Two experts a pack."""
    assert spec.experts is not None
    return PackLayout(
        n_experts=PACK_EXPERTS, hidden=spec.shape.hidden, ffn=spec.experts.ffn, dtype=spec.dtype, page_bytes=4096
    )


def loaded(spec: DecoderSpec, checkpoint: Checkpoint) -> TinyMoe:
    """A model from a folder, its experts in packs of two wherever memory is."""
    assert spec.experts is not None
    decoder = build_moe_decoder(spec, checkpoint.load_outer(spec, CPU), SdpaKernels(), LoopKernels())
    layout = pack_layout(spec)
    regions: list[Tensor] = []
    tables: list[ExpertTable] = []
    all_packs: list[Tensor] = []
    for layer in range(spec.shape.n_layers):
        regions.append(new_region(decoder.outer.layout.n_bytes, CPU))
        checkpoint.load_layer(spec, decoder.outer.layout, layer, regions[-1])
        packs = [new_region(layout.n_bytes, CPU) for _ in range(spec.experts.n_experts // PACK_EXPERTS)]
        for expert in range(spec.experts.n_experts):
            pack, nth = divmod(expert, PACK_EXPERTS)
            gate_up, down = layout.gate_up(packs[pack])[nth], layout.down(packs[pack])[nth]
            checkpoint.load_expert(spec, layer, expert, gate_up, down)
        tables.append(table_of(layout, packs))
        all_packs += packs  # tables hold addresses only
    return TinyMoe(decoder, regions, tables, all_packs, unwritten_kv(spec))

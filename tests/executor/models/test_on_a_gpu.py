# pyright: basic
# (torch leaves parts of its interface untyped)
"""The GPU path as a whole, Triton and CUDA graphs, against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from executor.attention.choose import kernels_for
from executor.models.decode_buffers import DecodeBuffers
from executor.models.decoder import Decoder, OuterWeights, build_decoder
from executor.models.graphs import DecodeGraphs
from executor.models.layout import new_region
from executor.models.spec import Family
from executor.models.step import Row, compose
from tests.executor.models.tiny import BLOCK_TOKENS, MAX_BLOCKS, Tiny, tiny_model, unwritten_kv

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

GPU = torch.device("cuda:0")
FAMILIES = [Family.OPT, Family.LLAMA]
PROMPTS = [[(13 * i + 2) % 97 for i in range(37)], [(5 * i + 1) % 97 for i in range(16)]]
BLOCKS = [[11, 3, 20], [7, 9]]
HALF_TOLERANCE = 2e-2  # of the norm: three layers in float16, sums in another order


def on_gpu(tiny: Tiny) -> tuple[Decoder, list[Tensor], Tensor]:
    """The same weights on the GPU, and an unwritten KV range there."""
    outer = tiny.decoder.outer
    moved = OuterWeights(
        token_embedding=outer.token_embedding.to(GPU),
        position_embedding=None if outer.position_embedding is None else outer.position_embedding.to(GPU),
        norm_weight=outer.norm_weight.to(GPU),
        norm_bias=None if outer.norm_bias is None else outer.norm_bias.to(GPU),
        head=outer.head.to(GPU),
    )
    regions = [new_region(tiny.decoder.layout.n_bytes, GPU).copy_(region) for region in tiny.regions]
    return build_decoder(tiny.spec, moved, kernels_for(GPU)), regions, unwritten_kv(tiny.spec).to(GPU)


def prefill_rows() -> list[Row]:
    """Two whole prompts."""
    return [Row(token_ids=prompt, n_before=0, blocks=blocks) for prompt, blocks in zip(PROMPTS, BLOCKS, strict=True)]


def decode_rows() -> list[Row]:
    return [
        Row(token_ids=[9], n_before=len(prompt), blocks=blocks) for prompt, blocks in zip(PROMPTS, BLOCKS, strict=True)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_prefills_chunks_and_decodes_agree_with_the_cpu(family: Family) -> None:
    tiny = tiny_model(family, torch.float16)
    decoder, regions, kv = on_gpu(tiny)
    steps = [
        [Row(token_ids=PROMPTS[0][:20], n_before=0, blocks=BLOCKS[0])],
        [Row(token_ids=PROMPTS[0][20:], n_before=20, blocks=BLOCKS[0]), prefill_rows()[1]],
        decode_rows(),
    ]
    for rows in steps:
        composed = compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=GPU)
        _, ours = decoder.run(regions, kv, composed)
        _, theirs = tiny.step(*rows)
        assert (ours.cpu() - theirs).float().norm() <= HALF_TOLERANCE * theirs.float().norm()


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_give_the_same_bits_from_every_place_and_leave_other_blocks_alone(family: Family) -> None:
    decoder, regions, kv = on_gpu(tiny_model(family, torch.float16))
    prefill = compose(prefill_rows(), block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=GPU)
    decoder.run(regions, kv, prefill)
    buffers, stream = DecodeBuffers(4, MAX_BLOCKS, BLOCK_TOKENS, GPU), torch.cuda.Stream()
    graphs = DecodeGraphs(decoder, buffers, kv, 4, stream)
    graphs.warm_up(4, regions[0])
    slot = new_region(decoder.layout.n_bytes, GPU)

    def run(places: list[Tensor]) -> tuple[Tensor, list[list[int]]]:
        sampled: list[list[int]] = []
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            buffers.fill(decode_rows(), 4)
            for _ in range(3):
                graphs.embed(4)
                for layer, place in enumerate(places):
                    if place is slot:
                        slot.copy_(regions[layer])
                    graphs.layer(4, layer, place)
                graphs.head(4)
                graphs.advance(4)
                sampled.append(graphs.sampled[:2].tolist())
        stream.synchronize()
        return graphs.hidden.clone(), sampled

    at_home, tokens = run(regions)
    from_the_slot, tokens_from_the_slot = run([slot, regions[1], slot])
    assert torch.equal(at_home, from_the_slot)
    assert tokens == tokens_from_the_slot
    others = [block for block in range(kv.shape[0]) if block not in (*BLOCKS[0], *BLOCKS[1])]
    assert kv[others].isnan().all()

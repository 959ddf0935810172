# pyright: basic
# (torch leaves parts of its interface untyped)
"""The GPU path as a whole, Triton and CUDA graphs, against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from executor.attention.choose import kernels_for
from executor.attention.prefill import gather
from executor.models.decode_buffers import DecodeBuffers
from executor.models.decoder import Decoder, OuterWeights, build_decoder
from executor.models.graphs import DecodeGraphs, PrefillGraphs
from executor.models.layout import new_region
from executor.models.prefill_buffers import PrefillBuffers, prefill_bucket_of
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


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_graphs_agree_with_single_kernels_and_give_the_same_bits_from_every_place(family: Family) -> None:
    tiny = tiny_model(family, torch.float16)
    decoder, regions, kv = on_gpu(tiny)
    beginning = [Row(token_ids=PROMPTS[0][:20], n_before=0, blocks=BLOCKS[0])]
    rows = [Row(token_ids=PROMPTS[0][20:], n_before=20, blocks=BLOCKS[0]), prefill_rows()[1]]
    bucket = prefill_bucket_of(rows)
    assert bucket == 64
    buffers, stream = PrefillBuffers(MAX_BLOCKS, BLOCK_TOKENS, GPU), torch.cuda.Stream()
    graphs = PrefillGraphs(decoder, buffers, kv, stream)
    graphs.warm_up(bucket, regions)
    slot = new_region(decoder.layout.n_bytes, GPU)

    @torch.inference_mode()
    def run(places: list[Tensor]) -> Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step = buffers.fill(rows, bucket)
            graphs.embed(step)
            for layer, place in enumerate(places):
                if place is slot:
                    slot.copy_(regions[layer])
                graphs.layer(step, layer, place)
            graphs.head(step)
        stream.synchronize()
        return graphs.hidden[:33].clone()

    decoder.run(regions, kv, compose(beginning, block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=GPU))
    at_home = run(regions)
    assert torch.equal(at_home, run(regions))
    assert torch.equal(at_home, run([slot, regions[1], slot]))
    hidden, _ = decoder.run(regions, kv, compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=GPU))
    assert (at_home - hidden).float().norm() <= HALF_TOLERANCE * hidden.float().norm()
    others = [block for block in range(kv.shape[0]) if block not in (*BLOCKS[0], *BLOCKS[1])]
    assert kv[others].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(40, 40), (32, 8)])
def test_prefills_of_several_sequences_agree_with_float64_and_repeat_to_the_bit(
    n_heads: int, n_kv_heads: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(8)
    order = torch.randperm(400).tolist()
    rows = [
        Row(token_ids=[1] * n_new, n_before=n_before, blocks=[order.pop() for _ in range(-(-(n_new + n_before) // 16))])
        for n_new, n_before in [(200, 0), (24, 0), (2, 0), (64, 1000), (300, 700), (17, 31)]
    ]
    step = compose(rows, block_tokens=16, max_blocks=128, device=GPU)
    kv = torch.randn(400, 2, 2, 16, n_kv_heads, 128, device=GPU).to(dtype)
    query = torch.randn(step.n_rows, n_heads, 128, device=GPU).to(dtype)
    kernels = kernels_for(GPU)
    attended = kernels.prefill(query, kv, 1, step)
    assert torch.equal(attended, kernels.prefill(query, kv, 1, step))
    assert step.prefills is not None
    for prefill in step.prefills.sequences:
        its = slice(prefill.first_row, prefill.first_row + prefill.n_new)
        n_blocks = -(-prefill.context // 16)
        key, value = gather(kv, 1, step.prefills.tables[prefill.table, :n_blocks].long(), prefill.context)
        seen = torch.ones(prefill.n_new, prefill.context, dtype=torch.bool, device=GPU)
        exact = functional.scaled_dot_product_attention(
            *(heads.transpose(0, 1)[None].double() for heads in (query[its], key, value)),
            attn_mask=seen.tril(prefill.context - prefill.n_new),
            enable_gqa=True,
        )[0].transpose(0, 1)
        assert (attended[its] - exact).norm() <= 4 * torch.finfo(dtype).eps * exact.norm()

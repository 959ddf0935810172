# pyright: basic
# (torch leaves parts of its interface untyped)
"""A mixture of experts on a GPU, by Triton and from graphs, against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch

from executor.models.decode_buffers import DecodeBuffers
from executor.models.decoder import greedy
from executor.models.moe_graphs import MoeGraphs
from executor.models.spec import DecoderSpec, ExpertSpec, Family
from executor.models.step import Row
from policies.types import ModelShape
from tests.executor.models.tiny import BLOCK_TOKENS, MAX_BLOCKS
from tests.executor.models.tiny_moe import random_moe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

GPU = torch.device("cuda:0")
PROMPTS = [[(13 * i + 2) % 97 for i in range(37)], [(5 * i + 1) % 97 for i in range(16)]]
BLOCKS = [[11, 3, 20], [7, 9]]
TOLERANCE = 1e-4  # of the norm: float32 throughout, sums in another order


def spec(*, norms_heads: bool) -> DecoderSpec:
    shape = ModelShape(
        name="tiny moe", n_layers=3, hidden=64, n_heads=4, n_kv_heads=2, head_dim=16, ffn=48, vocab=97, gated_mlp=True,
        layer_bytes=200_000, total_bytes=1_000_000, max_context_tokens=MAX_BLOCKS * BLOCK_TOKENS, dtype_bytes=4,
    )  # fmt: skip
    experts = ExpertSpec(n_experts=12, n_active=3, ffn=48)
    return DecoderSpec(
        shape=shape, family=Family.MOE, dtype=torch.float32, tied_head=False, experts=experts, norms_heads=norms_heads
    )


def steps() -> list[list[Row]]:
    """A piece of a prompt; the rest of it beside another; two decodes."""
    return [
        [Row(token_ids=PROMPTS[0][:20], n_before=0, blocks=BLOCKS[0])],
        [
            Row(token_ids=PROMPTS[0][20:], n_before=20, blocks=BLOCKS[0]),
            Row(token_ids=PROMPTS[1], n_before=0, blocks=BLOCKS[1]),
        ],
        [Row(token_ids=[9], n_before=37, blocks=BLOCKS[0]), Row(token_ids=[4], n_before=16, blocks=BLOCKS[1])],
    ]


@pytest.mark.parametrize("norms_heads", [True, False])
def test_prefills_chunks_and_decodes_agree_with_the_cpu(norms_heads: bool) -> None:
    ours, theirs = (random_moe(spec(norms_heads=norms_heads), device) for device in (GPU, torch.device("cpu")))
    for rows in steps():
        mine, expected = ours.step(*rows)[1].cpu(), theirs.step(*rows)[1]
        assert (mine - expected).norm() <= TOLERANCE * expected.norm()


def test_graphs_agree_with_single_kernels_and_leave_other_blocks_alone() -> None:
    tiny = random_moe(spec(norms_heads=True), GPU)
    *prefills, decodes = steps()
    for rows in prefills:
        tiny.step(*rows)
    expected, logits = tiny.step(*decodes)
    stream, buffers = torch.cuda.Stream(), DecodeBuffers(4, MAX_BLOCKS, BLOCK_TOKENS, GPU)
    weights = [tiny.decoder.layer(region) for region in tiny.regions]
    torch.cuda.synchronize()
    graphs = MoeGraphs(tiny.decoder, weights, tiny.tables, buffers, tiny.kv, 4, stream)
    graphs.warm_up(4)
    for _ in range(2):
        with torch.cuda.stream(stream):
            buffers.fill(decodes, 4)
            graphs.embed(4)
            for layer in range(graphs.n_layers):
                graphs.attend(4, layer)
                graphs.experts(4, layer)
            graphs.head(4)
        stream.synchronize()
        assert (graphs.hidden[:2] - expected).norm() <= TOLERANCE * expected.norm()
        assert graphs.sampled[:2].tolist() == greedy(logits).tolist()
    others = [block for block in range(tiny.kv.shape[0]) if block not in (*BLOCKS[0], *BLOCKS[1])]
    assert tiny.kv[others].isnan().all()

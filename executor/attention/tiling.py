"""How the decode kernel cuts its work, chosen by measurement: by heads and by how many sequences decode."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SPLITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the decode kernel cuts its work.

    Args:
        tile_tokens: tokens an iteration.
        n_stages: iterations in flight, and one more.
        n_programs: as many programs as this at least, by splitting contexts into a power of two
            of splits, up to ``MAX_SPLITS``.
        spread: 1 cuts every context into so many splits. More: only a context of the mean length is cut into
            so many, shorter ones into fewer, longer ones into up to ``spread`` (a power of two) times as many.
    """

    tile_tokens: int
    n_warps: int
    n_stages: int = 2
    n_programs: int = 528  # four for each of an H200's 132 multiprocessors
    spread: int = 1

    def __str__(self) -> str:
        spread = f"-x{self.spread}" if self.spread > 1 else ""
        return f"t{self.tile_tokens}-w{self.n_warps}-s{self.n_stages}-p{self.n_programs}{spread}"

    def n_splits(self, n_decodes: int, n_kv_heads: int) -> int:
        """Choose how many splits a context of mean length has, from sizes that a captured graph fixes."""
        wanted = -(-self.n_programs // (n_decodes * n_kv_heads))
        return min(MAX_SPLITS, _power_of_two_from(wanted))

    def n_splits_at_most(self, n_decodes: int, n_kv_heads: int) -> int:
        """How many splits the longest context can have."""
        return min(MAX_SPLITS, self.n_splits(n_decodes, n_kv_heads) * self.spread)


SINGLE_HEADS = Tiling(tile_tokens=64, n_warps=4)
"""For one query head a KV head."""

UNEVEN_SINGLE_HEADS = Tiling(tile_tokens=64, n_warps=4, n_programs=2112)
"""The same with more splits, so that a long context does not run on when the others have ended."""

GROUPED_HEADS = Tiling(tile_tokens=32, n_warps=1)
"""For several query heads a KV head."""

UNEVEN_DECODES = {False: (range(9, 65), UNEVEN_SINGLE_HEADS), True: (range(9, 65), SINGLE_HEADS)}
"""By whether KV heads are shared: at how many sequences uneven contexts are what counts, and the tiling for them.

Measured on an H200 at 16, 32 and 64 sequences of 450 tokens, uneven as a server's (``bench.attention``,
docs/decisions.md): a layer's attention takes 17 and 8 % less at 16 and 32 of OPT-13b (at 64 both tilings are the same),
6, 16 and 22 % less at 16, 32 and 64 of Llama-3-8b, which loses 1 to 5 % where all contexts are equal.
"""


def tiling_for(n_heads: int, n_kv_heads: int, n_decodes: int) -> Tiling:
    """Choose the tiling for a model with so many query and KV heads and a step of so many decodes.

    Elsewhere than at ``UNEVEN_DECODES`` each is, over batches of 64 and more and contexts of 1024 and more, within 4 %
    of the best that was measured on an H200 (docs/measured/h200_attention_variants.json).
    """
    shares = n_heads != n_kv_heads
    uneven, tiling = UNEVEN_DECODES[shares]
    if n_decodes in uneven:
        return tiling
    return GROUPED_HEADS if shares else SINGLE_HEADS


def _power_of_two_from(number: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()

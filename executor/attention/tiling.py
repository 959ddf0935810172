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

GROUPED_HEADS = Tiling(tile_tokens=32, n_warps=1)
"""For several query heads a KV head."""

SPREAD = Tiling(tile_tokens=64, n_warps=4, spread=4)
"""For contexts as uneven as a server's: the longest does not run on when the others have ended."""

SPREAD_DECODES = {False: range(5, 33), True: range(5, 65)}
"""By whether KV heads are shared: at how many sequences ``SPREAD`` is the better one.

Measured on an H200 with a mean of 450 tokens, uneven as a server's (docs/measured/h200_attention_uneven.json): beside
the tilings without a spread a layer's attention takes 13, 4 and 6 % less at 8, 16 and 32 sequences of OPT-13b (at 64
3 %, which 12 % where all contexts are equal outweigh), 4, 13, 16 and 12 % less at 8 to 64 of Llama-3-8b.
"""


def tiling_for(n_heads: int, n_kv_heads: int, n_decodes: int) -> Tiling:
    """Choose the tiling for a model with so many query and KV heads and a step of so many decodes.

    Elsewhere than at ``SPREAD_DECODES`` each is, over batches of 64 and more and contexts of 1024 and more, within 4 %
    of the best that was measured on an H200 (docs/measured/h200_attention_variants.json).
    """
    shares = n_heads != n_kv_heads
    if n_decodes in SPREAD_DECODES[shares]:
        return SPREAD
    return GROUPED_HEADS if shares else SINGLE_HEADS


def _power_of_two_from(number: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()

"""At which sizes a device is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from executor.models.decode_buffers import BATCH_BUCKETS
from executor.models.prefill_buffers import TOKEN_BUCKETS, TOKENS_PER_SEQ
from traces.measured.device_tables import Padding

GRAPHED = Padding(decode_seqs=BATCH_BUCKETS, prefill_tokens=TOKEN_BUCKETS, tokens_per_seq=TOKENS_PER_SEQ)
"""How steps are padded where they run as graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Sizes, and how often each is repeated.

    Attributes:
        batches: sequences of decode steps.
        contexts: mean contexts of their sequences, in tokens.
        tokens: tokens of a layer without attention.
        prompts: whole prompts, in tokens.
        behind: prompts behind tokens that are in the cache: (new, before).
        together: equal whole prompts in one step: (sequences, tokens of each).
        launches: sequences of steps whose launching is timed.
        prefills: further prefill steps, to check sums: (sequences, tokens of each).
        mixed: steps of decodes and one prompt, likewise: (decodes, mean context, tokens of the prompt).
        loops: requests that are served at a time, to time the loop.
        n_loop_tokens: output tokens of each.
        prefill_loops: requests that are served at a time with one output token.
        n_graphed_tokens: of their prompts together at most, where a graph is to hold them.
        n_eager_tokens: of their prompts together, where none is.
        between: further decode steps, of sizes to which none is padded: (sequences, mean context).
        n_layers: layers that parts are timed over, so that weights come from HBM and not from a cache.
        n_copies: of a layer, to time the link.
        n_calls: of each driver call.
        n_repeats: of everything else, at most.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    tokens: tuple[int, ...]
    prompts: tuple[int, ...]
    behind: tuple[tuple[int, int], ...]
    together: tuple[tuple[int, int], ...]
    launches: tuple[int, ...]
    prefills: tuple[tuple[int, int], ...]
    mixed: tuple[tuple[int, int, int], ...]
    loops: tuple[int, ...]
    n_loop_tokens: int
    prefill_loops: tuple[int, ...]
    n_graphed_tokens: int
    n_eager_tokens: int
    n_layers: int
    n_copies: int
    n_calls: int
    n_repeats: int
    between: tuple[tuple[int, int], ...] = ()


WHOLE = Grid(
    batches=BATCH_BUCKETS,
    contexts=(16, 64, 256, 512, 1024, 2048),
    tokens=(
        *(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512),
        *(640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096),
    ),
    prompts=(16, *TOKEN_BUCKETS, 1280, 1536, 2048),
    behind=((16, 1024), (64, 1024), (256, 1024), (512, 1024), (1024, 1024)),
    together=((8, 16), (8, 64), (8, 256)),
    launches=(2, 16, max(BATCH_BUCKETS)),
    prefills=((1, 24), (1, 200), (1, 900), (4, 24), (4, 200), (16, 24), (8, 250), (60, 30)),
    mixed=((8, 256, 64), (64, 512, 448), (64, 512, 1984)),
    loops=BATCH_BUCKETS,
    n_loop_tokens=32,
    prefill_loops=(1, 4, 16, 64, TOKEN_BUCKETS[-1] // TOKENS_PER_SEQ),
    n_graphed_tokens=TOKEN_BUCKETS[-1],
    n_eager_tokens=TOKEN_BUCKETS[-1] + 128,
    n_layers=8,
    n_copies=8,
    n_calls=20,
    n_repeats=6,
)
"""For models of billions of parameters on a GPU: about half a minute each."""

WHOLE_EXPERTS = replace(
    WHOLE,
    contexts=(16, 256, 1024, 2048, 4096, 8192),
    tokens=(
        *(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
        *(384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
    ),
    prompts=(16, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    behind=(*((n, 4096) for n in (16, 64, 128, 256, 512, 1024)), *((n, 8192) for n in (256, 1024, 2048))),
    between=((3, 512), (12, 2048), (15, 4096), (24, 2048), (40, 1024), (200, 256)),
    mixed=((8, 256, 64), (15, 4096, 768), (15, 4096, 2033), (64, 512, 448), (64, 512, 1984)),
)
"""For mixtures of experts, which serve longer contexts. Prompts run in no graph: their parts are timed alone."""

QUICK = Grid(
    batches=(1, 4, 16),
    contexts=(4, 32, 128),
    tokens=(1, 4, 16, 64, 256),
    prompts=(4, 16, 64, 128),
    behind=((16, 64), (64, 64)),
    together=((4, 16), (4, 32)),
    launches=(2, 16),
    prefills=((1, 24), (4, 24)),
    mixed=((4, 16, 16),),
    loops=(1, 4, 16),
    n_loop_tokens=8,
    prefill_loops=(1, 4),
    n_graphed_tokens=32,
    n_eager_tokens=64,
    n_layers=2,
    n_copies=4,
    n_calls=4,
    n_repeats=3,
)
"""For tiny models on a CPU: does it run? Its figures mean little."""

QUICK_EXPERTS = replace(QUICK, contexts=(4, 32), tokens=(1, 2, 4, 8, 16, 64), between=((3, 16),))
"""For a tiny mixture of experts."""

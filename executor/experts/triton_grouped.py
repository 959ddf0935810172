"""Two grouped GEMMs over rows sorted by expert, in Triton: gate, up and SiLU; and down with the weights of routing.

A program computes a tile of rows of one expert. Which expert and which rows, it works out from the counts on
the device, so a captured launch serves any routing; where the weights are, it reads in the layer's table, so
that one launch serves experts at home and staged ones, and moving one changes no graph. Sums run in one order
whatever the address: the same step gives the same bits.
"""

# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
# (a kernel is Python in form alone: ``tl.range`` is no iterator and constants are tensors)
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor.experts.packs import UNIT_BYTES, ExpertTable
from executor.experts.triton_routing import add_up, choose_experts, norm_heads, sort_by_expert
from executor.models.moe import Routed
from executor.models.spec import DecoderSpec, ExpertSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the kernels cut their work.

    Args:
        rows: of an expert, a program.
        columns: of the result, a program; for gate and up each.
        depth: numbers of a sum an iteration.
        n_stages: iterations in flight, and one more.
    """

    rows: int
    columns: int
    depth: int
    n_warps: int
    n_stages: int

    def __str__(self) -> str:
        return f"r{self.rows}-c{self.columns}-d{self.depth}-w{self.n_warps}-s{self.n_stages}"


FEW_ROWS = Tiling(rows=16, columns=64, depth=128, n_warps=4, n_stages=3)
"""Decoding: bound by reading the weights. 16 rows are the fewest that the tensor cores take."""

MANY_ROWS = Tiling(rows=64, columns=64, depth=64, n_warps=4, n_stages=3)
"""Prompts: each weight serves tens of rows."""

HEADS_PER_PROGRAM = 4
"""1 KiB of a row in bf16, a program of four warps: two numbers a thread and head."""

SORTED_AT_ONCE = 1024
"""Assignments that a program of four warps looks at together: eight a thread."""

ADDED_AT_ONCE = 1024
"""Columns that a program adds up: eight a thread, the widest access in bf16."""

MOST_ROWS = 8
"""Mean rows of an expert up to which it is tiled as ``FEW_ROWS``: at 8 it takes 290 us against 300, at 16 326 against
305 (Qwen3-30B-A3B, H200: docs/measured/h200_moe_experts.json)."""


def tiling_for(n_assignments: int, n_experts: int) -> Tiling:
    """Choose the tiling of a step by its size, which a captured graph fixes."""
    return FEW_ROWS if n_assignments <= MOST_ROWS * n_experts else MANY_ROWS


@dataclass(frozen=True, slots=True)
class TritonExperts:
    """Experts by Triton; see ``ExpertKernels``. Everything can be captured.

    Args:
        tiling: ``None`` chooses it by the size of the step.
    """

    tiling: Tiling | None = None

    def norm_heads(self, qkv: Tensor, query_norm: Tensor, key_norm: Tensor, spec: DecoderSpec) -> None:
        """See ``ExpertKernels``."""
        shape = spec.shape
        n_heads = shape.n_heads + shape.n_kv_heads
        norm_heads[qkv.shape[0], triton.cdiv(n_heads, HEADS_PER_PROGRAM)](
            qkv,
            query_norm,
            key_norm,
            spec.norm_eps,
            N_HEADS=shape.n_heads,
            N_KV_HEADS=shape.n_kv_heads,
            HEAD_DIM=shape.head_dim,
            DIMS=triton.next_power_of_2(shape.head_dim),
            HEADS=HEADS_PER_PROGRAM,
        )

    def route(self, normed: Tensor, logits: Tensor, spec: ExpertSpec) -> Routed:
        """See ``ExpertKernels``."""
        n_rows, device = logits.shape[0], logits.device
        ids = torch.empty(n_rows, spec.n_active, dtype=torch.int32, device=device)
        weights = torch.empty(n_rows, spec.n_active, dtype=normed.dtype, device=device)
        choose_experts[n_rows,](
            logits,
            ids,
            weights,
            N_EXPERTS=spec.n_experts,
            EXPERTS=triton.next_power_of_2(spec.n_experts),
            N_ACTIVE=spec.n_active,
            ACTIVE=triton.next_power_of_2(spec.n_active),
            NORMALISES=spec.normalises,
        )
        order = torch.empty(ids.numel(), dtype=torch.int64, device=device)
        starts = torch.empty(spec.n_experts + 1, dtype=torch.int64, device=device)
        sort_by_expert[spec.n_experts,](ids, order, starts, ids.numel(), CHUNK=SORTED_AT_ONCE)
        return Routed(normed=normed, weights=weights, order=order, starts=starts)

    def run(self, hidden: Tensor, routed: Routed, table: ExpertTable, spec: ExpertSpec) -> None:
        """See ``ExpertKernels``.

        Raises:
            ValueError: the sizes of an expert do not divide into tiles.
        """
        n_rows, width = hidden.shape
        n_assignments = routed.order.shape[0]
        tiling = self.tiling or tiling_for(n_assignments, spec.n_experts)
        n_tiles = min(spec.n_experts, n_assignments) + n_assignments // tiling.rows
        inner = torch.empty(n_assignments, spec.ffn, dtype=hidden.dtype, device=hidden.device)
        said = torch.empty(n_assignments, width, dtype=hidden.dtype, device=hidden.device)
        shared = {
            "N_EXPERTS": spec.n_experts,
            "EXPERTS": triton.next_power_of_2(spec.n_experts),
            "WIDTH": width,
            "FFN": spec.ffn,
            "UNIT": UNIT_BYTES // hidden.itemsize,
            "ROWS": tiling.rows,
            "N_STAGES": tiling.n_stages,
            "num_warps": tiling.n_warps,
        }
        columns, depth = _part(spec.ffn, tiling.columns), _part(width, tiling.depth)
        gate_and_up[spec.ffn // columns, n_tiles](
            routed.normed,
            table.base,
            table.offsets[0],
            routed.order,
            routed.starts,
            inner,
            N_ACTIVE=spec.n_active,
            COLUMNS=columns,
            DEPTH=depth,
            **shared,
        )
        columns, depth = _part(width, tiling.columns), _part(spec.ffn, tiling.depth)
        down_and_scale[width // columns, n_tiles](
            inner,
            table.base,
            table.offsets[1],
            routed.order,
            routed.starts,
            routed.weights,
            said,
            COLUMNS=columns,
            DEPTH=depth,
            **shared,
        )
        add_up[n_rows, triton.cdiv(width, ADDED_AT_ONCE)](
            hidden, said, N_ACTIVE=spec.n_active, WIDTH=width, COLUMNS=ADDED_AT_ONCE
        )


def _part(size: int, at_most: int) -> int:
    """The largest power of two up to ``at_most`` that divides a size.

    Raises:
        ValueError: it is below 16, which tensor cores do not take.
    """
    part = min(size & -size, at_most)
    if part < 16:
        raise ValueError(f"an expert's size {size} is no multiple of 16: these kernels cannot be used")
    return part


@triton.jit
def gate_and_up(
    rows_ptr,  # (n_rows, WIDTH)
    weights_ptr,  # what offsets count from
    offsets_ptr,  # (N_EXPERTS,) int64, of gate and up, (2 * FFN, WIDTH)
    order_ptr,  # (n_assignments,) int64
    starts_ptr,  # (N_EXPERTS + 1,) int64
    out_ptr,  # (n_assignments, FFN), in the order of experts
    N_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,  # as a power of two
    N_ACTIVE: tl.constexpr,
    WIDTH: tl.constexpr,
    FFN: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    N_STAGES: tl.constexpr,
):
    """SiLU(gate) * up of one tile of rows and one of columns."""
    expert, first, n_rows = _tile(starts_ptr, tl.program_id(1), N_EXPERTS, EXPERTS, ROWS)
    if n_rows <= 0:
        return
    nth, depth = tl.arange(0, ROWS), tl.arange(0, DEPTH)
    real = nth < n_rows
    row = tl.load(order_ptr + first + nth, mask=real, other=0) // N_ACTIVE
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row_ptr = rows_ptr + row[:, None] * WIDTH + depth[None, :]
    gate_ptr = weights_ptr + tl.load(offsets_ptr + expert) * UNIT + column[:, None] * WIDTH + depth[None, :]
    gates = tl.zeros([ROWS, COLUMNS], tl.float32)
    ups = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in tl.range(0, WIDTH, DEPTH, num_stages=N_STAGES):
        values = tl.load(row_ptr + at, mask=real[:, None], other=0.0)
        gate = tl.load(gate_ptr + at)
        up = tl.load(gate_ptr + FFN * WIDTH + at)
        gates = tl.dot(values, gate.T, gates, input_precision="ieee")
        ups = tl.dot(values, up.T, ups, input_precision="ieee")
    result = gates / (1 + tl.exp(-gates)) * ups
    out_at = (first + nth)[:, None] * FFN + column[None, :]
    tl.store(out_ptr + out_at, result.to(out_ptr.dtype.element_ty), mask=real[:, None])


@triton.jit
def down_and_scale(
    inner_ptr,  # (n_assignments, FFN), in the order of experts
    weights_ptr,  # what offsets count from
    offsets_ptr,  # (N_EXPERTS,) int64, of down, (WIDTH, FFN)
    order_ptr,  # (n_assignments,) int64
    starts_ptr,  # (N_EXPERTS + 1,) int64
    scales_ptr,  # (n_assignments,), in the order of rows
    out_ptr,  # (n_assignments, WIDTH), in the order of rows
    N_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,  # as a power of two
    WIDTH: tl.constexpr,
    FFN: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    N_STAGES: tl.constexpr,
):
    """What one tile of rows and one of columns adds to the residual stream, each row scaled as it was routed."""
    expert, first, n_rows = _tile(starts_ptr, tl.program_id(1), N_EXPERTS, EXPERTS, ROWS)
    if n_rows <= 0:
        return
    nth, depth = tl.arange(0, ROWS), tl.arange(0, DEPTH)
    real = nth < n_rows
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row_ptr = inner_ptr + (first + nth)[:, None] * FFN + depth[None, :]
    down_ptr = weights_ptr + tl.load(offsets_ptr + expert) * UNIT + column[:, None] * FFN + depth[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in tl.range(0, FFN, DEPTH, num_stages=N_STAGES):
        values = tl.load(row_ptr + at, mask=real[:, None], other=0.0)
        down = tl.load(down_ptr + at)
        sums = tl.dot(values, down.T, sums, input_precision="ieee")
    assignment = tl.load(order_ptr + first + nth, mask=real, other=0)
    scale = tl.load(scales_ptr + assignment, mask=real, other=0.0).to(tl.float32)
    out_at = assignment[:, None] * WIDTH + column[None, :]
    tl.store(out_ptr + out_at, (sums * scale[:, None]).to(out_ptr.dtype.element_ty), mask=real[:, None])


@triton.jit
def _tile(starts_ptr, tile, N_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """Expert, first assignment and number of rows of a tile; no rows: there are fewer tiles."""
    experts = tl.arange(0, EXPERTS)
    is_real = experts < N_EXPERTS
    starts = tl.load(starts_ptr + experts, mask=is_real, other=0).to(tl.int32)
    ends = tl.load(starts_ptr + experts + 1, mask=is_real, other=0).to(tl.int32)
    n_tiles = tl.cdiv(ends - starts, ROWS)
    last_tiles = tl.cumsum(n_tiles, axis=0)
    is_mine = (tile >= last_tiles - n_tiles) & (tile < last_tiles)
    expert = tl.sum(tl.where(is_mine, experts, 0))
    first = tl.sum(tl.where(is_mine, starts + (tile - last_tiles + n_tiles) * ROWS, 0))
    n_rows = tl.sum(tl.where(is_mine, tl.minimum(ends - first, ROWS), 0))
    return expert, first, n_rows

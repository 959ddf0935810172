"""What a change comes to: worked out before anything is touched, and refused if it makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executor.memory.extents import Extents
from executor.memory.homes import Homes, Lent, Loading, Resident, Slot, Unused
from executor.memory.mover import HomeId
from policies.memory.experts import Offload, Reload
from policies.memory.ops import Cycle, HoldOnHost, Lend, Load, MoveBlocks, Op, Withdraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a change leads to.

    Attributes:
        homes: of every model, once it is carried out.
        changed: homes that change hands.
        dead: of these, homes whose content nobody may read any more: weights that gave way to
            KV cache or to other weights, KV cache that gave way to weights.
        loads: (model, layer, home) to begin to fetch.
        settled: (model, layer, home) of layers that come to rest in what were their slots.
    """

    homes: tuple[Homes, ...]
    changed: frozenset[HomeId]
    dead: tuple[HomeId, ...]
    loads: tuple[tuple[int, int, int], ...]
    settled: tuple[tuple[int, int, int], ...]


def work_out(models: Sequence[Extents], before: Sequence[Homes], ops: Sequence[Op]) -> Outcome:
    """Play the ops through on the homes.

    Raises:
        ValueError: an op makes no sense where it stands, or a home is left unused.
    """
    homes = list(before)
    touched: set[HomeId] = set()
    loads: list[tuple[int, int, int]] = []
    settled: list[tuple[int, int, int]] = []
    for op in ops:
        match op:
            case Withdraw(lender, home, _):
                homes[lender] = homes[lender].withdraw(op)
                touched.add((lender, home))
            case Lend(lender, home, _):
                _refuse_unlendable(models, op)
                homes[lender] = homes[lender].lend(op)
                touched.add((lender, home))
            case Load(model, layer, home):
                homes[model] = homes[model].load(op)
                touched.add((model, home))
                loads.append((model, layer, home))
            case Cycle(model):
                _refuse_fixed_layers(models, op)
                cycled = homes[model].cycle(op)
                settled += [(model, layer, home) for layer, home in _settled(homes[model], cycled)]
                homes[model] = cycled
            case HoldOnHost():
                raise ValueError(f"model {op.model}: the executor keeps no KV cache of running requests on the host")
            case Offload() | Reload():
                raise ValueError(f"model {op.model} has no experts here")
            case MoveBlocks():
                _refuse_bad_moves(models, homes, op)
    _refuse_unused(homes)
    changed = touched | _differing(before, homes)
    return Outcome(
        homes=tuple(homes),
        changed=frozenset(changed),
        dead=tuple(sorted(home for home in changed if _is_dead(before, homes, home))),
        loads=tuple(loads),
        settled=tuple(settled),
    )


def _settled(before: Homes, after: Homes) -> list[tuple[int, int]]:
    """(layer, home) where a slot has become a layer's home."""
    pairs = zip(before.uses, after.uses, strict=True)
    return [
        (new.layer, home)
        for home, (old, new) in enumerate(pairs)
        if isinstance(old, Slot) and isinstance(new, Resident)
    ]


def _differing(before: Sequence[Homes], after: Sequence[Homes]) -> set[HomeId]:
    """Homes that serve as something else, but for weights that were being loaded and are there."""
    return {
        (model, home)
        for model in range(len(before))
        if before[model] is not after[model]
        for home, (old, new) in enumerate(zip(before[model].uses, after[model].uses, strict=True))
        if old is not new and old != new and not (isinstance(old, Loading) and new == Resident(old.layer))
    }


def _is_dead(before: Sequence[Homes], after: Sequence[Homes], home_id: HomeId) -> bool:
    model, home = home_id
    old, new = before[model].uses[home], after[model].uses[home]
    return old != new and (isinstance(old, Lent) or isinstance(new, Lent | Loading))


def _refuse_unlendable(models: Sequence[Extents], op: Lend) -> None:
    if op.lender not in models[op.borrower].lenders:
        raise ValueError(f"{op}: model {op.borrower} may borrow only of models {sorted(models[op.borrower].lenders)}")
    if op.home not in models[op.lender].lendable:
        raise ValueError(
            f"{op}: lendable homes are {sorted(models[op.lender].lendable)}; open the memory with this one"
        )


def _refuse_fixed_layers(models: Sequence[Extents], op: Cycle) -> None:
    if fixed := set(op.cycling) - models[op.model].lendable:
        raise ValueError(f"{op}: layers {sorted(fixed)} have no master copy; open the memory with them as lendable")


def _refuse_bad_moves(models: Sequence[Extents], homes: Sequence[Homes], op: MoveBlocks) -> None:
    blocks = [block for pair in op.moves for block in pair]
    if len(set(blocks)) != len(blocks):
        raise ValueError(f"{op}: a block is named twice")
    if op.block_bytes != models[op.model].block_bytes:
        raise ValueError(f"{op}: a block of model {op.model} has {models[op.model].block_bytes} bytes")
    held = _held_blocks(models[op.model], op.model, homes)
    if missing := [block for block in blocks if not any(block in blocks_of for blocks_of in held)]:
        raise ValueError(f"{op}: there is nothing behind blocks {missing}")


def _held_blocks(extents: Extents, borrower: int, homes: Sequence[Homes]) -> list[range]:
    """Block ids of a model with pages behind them: its own, then range by range."""
    held = [range(extents.layout.n_base_blocks)]
    for lender, of_lender in enumerate(homes):
        for home, use in enumerate(of_lender.uses):
            if use == Lent(borrower):
                first, n_blocks = extents.layout.range_of(lender, home)
                held.append(range(first, first + n_blocks))
    return held


def _refuse_unused(homes: Sequence[Homes]) -> None:
    unused = [
        (model, home)
        for model, of_model in enumerate(homes)
        for home, use in enumerate(of_model.uses)
        if isinstance(use, Unused)
    ]
    if unused:
        raise ValueError(f"(model, home) {unused} would serve as nothing once the change is done")

"""The ordered effects that lead from one residency to a target: computed once, here.

A backend carries out ops and decides nothing. Order: ranges leave the borrowers first,
then layers join or leave the cycle, then weights are loaded into what became free,
then homes are lent.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.errors import HbmOverdrawn
from policies.memory.experts import Offload, Reload
from policies.memory.residency import HostKv, Loan, Residency, Target


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The borrower's KV range over this home ends; none of its blocks is referenced."""

    lender: int
    home: int
    borrower: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """From now on these layers of the model take turns in these slots."""

    model: int
    cycling: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch the weights of a layer into a home; it cycles until they have landed."""

    model: int
    layer: int
    home: int


@dataclass(frozen=True, slots=True)
class Lend:
    """The home becomes a KV range of the borrower."""

    lender: int
    home: int
    borrower: int


@dataclass(frozen=True, slots=True)
class MoveBlocks:
    """Copy KV blocks of a model within HBM: (from, to) block ids."""

    model: int
    moves: tuple[tuple[int, int], ...]
    block_bytes: int


@dataclass(frozen=True, slots=True)
class HoldOnHost:
    """From now on so much of the model's KV cache lies in host memory; units that end hold nothing in use."""

    model: int
    before: HostKv | None
    after: HostKv | None

    @property
    def ended(self) -> range:
        """Numbers of the units that end."""
        return range(_n_units(self.after), _n_units(self.before))

    @property
    def begun(self) -> range:
        """Numbers of the units that begin."""
        return range(_n_units(self.before), _n_units(self.after))


def _n_units(on_host: HostKv | None) -> int:
    return 0 if on_host is None else on_host.n_units


Op = Withdraw | Cycle | Load | Lend | MoveBlocks | Offload | Reload | HoldOnHost


def transition(model: int, now: Residency, target: Target) -> tuple[tuple[Op, ...], Residency]:
    """Work out how one model gets from ``now`` to ``target``.

    A layer that leaves the cycle returns to its own home if that is free, else takes
    over one that is (that of a layer which enters): no block of a live range has to
    move. When nothing stays lent, as many layers as there are slots end up in them and
    need no load.

    Returns:
        The ops in order, and the residency once they are applied, before any load lands.
        ``((), now)`` if ``now`` has reached the target or is on its way to it.

    Raises:
        HbmOverdrawn: a layer or home that the target wants is being loaded, or a home that
            it lends would not be free.
        ValueError: the target names a layer or a home that the model does not have.
    """
    if target == now.wanted:
        return (), now
    _refuse_impossible(now, target)
    returning = {layer for layer, _ in now.loading}
    entering = [layer for layer in target.cycling if now.homes[layer] is not None]
    leaving = [layer for layer in now.cycling if layer not in target.cycling and layer not in returning]
    ended = [loan for loan in now.loans if loan not in target.loans]
    granted = [loan for loan in target.loans if loan not in now.loans]
    n_slots = target.n_slots if target.loans else now.n_slots

    left = {home for layer in entering if (home := now.homes[layer]) is not None}
    free = sorted(left | {loan.home for loan in ended} | {*now.slots[n_slots:]})
    for loan in granted:
        if loan.home not in free:
            raise HbmOverdrawn(f"model {model}: home {loan.home} would not be free to lend")
        free.remove(loan.home)
    slots = now.slots[:n_slots]
    while len(slots) < n_slots:
        slots += (free.pop(0),)
    loads = [] if not target.loans else leaving
    if not target.loans:
        loads = _beyond_the_slots(leaving, slots)
    loading = now.loading
    for layer in loads:
        home = layer if layer in free else free[0]
        free.remove(home)
        loading += ((layer, home),)

    homes = tuple(None if layer in entering else home for layer, home in enumerate(now.homes))
    loans = tuple(loan for loan in now.loans if loan in target.loans) + tuple(granted)
    after = _settled(homes, slots, loans, loading, target.on_host)
    ops: list[Op] = [Withdraw(model, loan.home, loan.borrower) for loan in ended]
    if (after.cycling, after.slots) != (now.cycling, now.slots):
        ops.append(Cycle(model, after.cycling, after.slots))
    ops += [Load(model, layer, home) for layer, home in loading[len(now.loading) :]]
    ops += [Lend(model, loan.home, loan.borrower) for loan in granted]
    if target.on_host != now.on_host:
        ops.append(HoldOnHost(model, now.on_host, target.on_host))
    return tuple(ops), after


def landed(model: int, now: Residency, layer: int) -> tuple[tuple[Op, ...], Residency]:
    """Publish that the weights of ``layer`` are in the home they were loaded into.

    Raises:
        KeyError: that layer is not being loaded.
    """
    home = dict(now.loading)[layer]
    homes = tuple(home if index == layer else old for index, old in enumerate(now.homes))
    loading = tuple(entry for entry in now.loading if entry[0] != layer)
    after = _settled(homes, now.slots, now.loans, loading, now.on_host)
    return (Cycle(model, after.cycling, after.slots),), after


def _settled(
    homes: tuple[int | None, ...],
    slots: tuple[int, ...],
    loans: tuple[Loan, ...],
    loading: tuple[tuple[int, int], ...],
    on_host: HostKv | None,
) -> Residency:
    """The residency, with the last cycling layers at rest in their slots when nothing is lent or loading."""
    if loans or loading or not slots:
        return Residency(homes=homes, slots=slots, loans=loans, loading=loading, on_host=on_host)
    cycling = [layer for layer, home in enumerate(homes) if home is None]
    in_slot = dict(_pair(cycling, slots))
    return Residency(homes=tuple(in_slot.get(layer, home) for layer, home in enumerate(homes)), on_host=on_host)


def _pair(layers: list[int], slots: tuple[int, ...]) -> list[tuple[int, int]]:
    """Each layer with a slot, its own home first."""
    own = [layer for layer in layers if layer in slots]
    others = [layer for layer in layers if layer not in slots]
    rest = [slot for slot in slots if slot not in own]
    return [(layer, layer) for layer in own] + list(zip(others, rest, strict=True))


def _beyond_the_slots(leaving: list[int], slots: tuple[int, ...]) -> list[int]:
    """The leaving layers that will not rest in a slot: those whose home is a slot rest first, then the lowest."""
    by_claim = sorted(leaving, key=lambda layer: (layer not in slots, layer))
    return sorted(by_claim[len(slots) :])


def _refuse_impossible(now: Residency, target: Target) -> None:
    if target.cycling and not 0 <= target.cycling[0] <= target.cycling[-1] < now.n_layers:
        raise ValueError(f"cycling layers {target.cycling} are outside 0..{now.n_layers - 1}")
    busy_layers = {layer for layer, _ in now.loading} & set(target.cycling)
    busy_homes = {home for _, home in now.loading} & {loan.home for loan in target.loans}
    held, wanted = now.on_host, target.on_host
    if held is not None and wanted is not None and (held.unit_blocks, held.use) != (wanted.unit_blocks, wanted.use):
        raise ValueError(f"KV on the host: {held} cannot become {wanted}; let it end first")
    if busy_layers or busy_homes:
        raise HbmOverdrawn(f"layers {sorted(busy_layers)} or homes {sorted(busy_homes)} are being loaded")

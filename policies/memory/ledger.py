"""Who holds each page of HBM. It refuses what does not fit before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from policies.errors import HbmOverdrawn
from policies.memory.experts import ExpertResidency, Reload, move_boundaries
from policies.memory.layout import home_pages
from policies.memory.ops import HoldOnHost, Op, Withdraw, landed, transition
from policies.memory.residency import Residency, Target
from policies.types import GIB, HardwareProfile, ModelShape


class Use(Enum):
    """What a page is used for."""

    OTHER_WEIGHTS = "embeddings and head"
    RESIDENT = "layers at home"
    SLOTS = "slots"
    LOADING = "layers on their way back"
    LENT = "lent to a KV cache"
    OFFLOADED = "experts' pages in a KV cache"
    STAGING = "buffers for offloaded experts"
    KV_BASE = "KV cache of its own"
    ACTIVATIONS = "activations"
    UNASSIGNED = "no model's"


class Holder(NamedTuple):
    """A model (``None`` for unassigned pages) and what it uses pages for."""

    model: int | None
    use: Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The pages of one model, fixed at start-up. Staging buffers lie beside the share of HBM that it was given.

    Raises:
        ValueError: the weights and activations leave no page for KV.
    """

    name: str
    n_layers: int
    home_pages: int
    other_pages: int
    activation_pages: int
    kv_pages: int
    staging_pages: int = 0

    @property
    def n_pages(self) -> int:
        """All of them."""
        weights = self.n_layers * self.home_pages + self.other_pages
        return weights + self.activation_pages + self.kv_pages + self.staging_pages


def partition(
    shape: ModelShape, hardware: HardwareProfile, *, share: float, activation_bytes: int, staging_bytes: int = 0
) -> Partition:
    """Divide the ``share`` of HBM that a model gets into weights, activations and KV; staging buffers come on top.

    Raises:
        ValueError: the share is outside (0, 1] or too small for the weights.
    """
    if not 0 < share <= 1:
        raise ValueError(f"model {shape.name}: share {share} is outside (0, 1]; give it a share of the HBM")
    page = hardware.page_bytes
    n_pages = int(hardware.hbm_bytes * share) // page
    home = home_pages(shape, hardware)
    other = -(-shape.other_bytes // page)
    activation = -(-activation_bytes // page)
    kv = n_pages - shape.n_layers * home - other - activation
    if kv < 1:
        needed_gib, given_gib = (n_pages - kv) * page / GIB, n_pages * page / GIB
        raise ValueError(
            f"model {shape.name}: {share:.0%} of {hardware.name} ({given_gib:.1f} GiB) is less than its weights and "
            f"activations ({needed_gib:.1f} GiB); give it a larger share or a larger GPU"
        )
    return Partition(
        name=shape.name,
        n_layers=shape.n_layers,
        home_pages=home,
        other_pages=other,
        activation_pages=activation,
        kv_pages=kv,
        staging_pages=-(-staging_bytes // page),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Ops that lead to the targets, and the residencies after them."""

    ops: tuple[Op, ...]
    residencies: tuple[Residency, ...]
    experts: tuple[ExpertResidency | None, ...] = ()


class Ledger:
    """The books of HBM: residencies of all models over fixed partitions.

    Args:
        hbm_pages: pages of the device.
        partitions: one a model.
        experts: of models that may offload theirs, with nothing offloaded; ``None`` for the others.

    Attributes:
        anything_lent: whether any home serves as KV cache, or any KV cache lies on the host.

    Raises:
        ValueError: the partitions exceed the device.
    """

    def __init__(
        self, hbm_pages: int, partitions: Sequence[Partition], experts: Sequence[ExpertResidency | None] = ()
    ) -> None:
        self.partitions = tuple(partitions)
        self.unassigned_pages = hbm_pages - sum(part.n_pages for part in partitions)
        if self.unassigned_pages < 0:
            names = ", ".join(part.name for part in partitions)
            raise ValueError(
                f"{names} together need {-self.unassigned_pages} pages more than HBM has; lower the shares"
            )
        self.residencies = tuple(Residency.all_resident(part.n_layers) for part in partitions)
        self.experts = tuple(experts) or (None,) * len(self.partitions)
        self.anything_lent = False

    @property
    def increments(self) -> tuple[int, ...]:
        """Increments of experts in the KV cache of every model."""
        return tuple(0 if experts is None else experts.n_increments for experts in self.experts)

    @property
    def wanted(self) -> tuple[Target, ...]:
        """The targets that have been reached or are on their way."""
        return tuple(residency.wanted for residency in self.residencies)

    def plan(
        self, targets: Sequence[Target], n_referenced: Callable[[int, int], int], increments: Sequence[int] = ()
    ) -> Plan:
        """Work out how to reach the targets, touching nothing.

        Args:
            targets: one a model.
            n_referenced: blocks in use in the range over (lender, home), or of (model, increment); a unit on the host
                counts as a home behind those of its model.
            increments: wanted increments of experts, one a model; none: as they are.

        Raises:
            HbmOverdrawn: a range that would be withdrawn is in use, or a home is not free.
            ValueError: a target names what does not exist.
        """
        ops: list[Op] = []
        after: list[Residency] = []
        for model, (now, target) in enumerate(zip(self.residencies, targets, strict=True)):
            model_ops, residency = transition(model, now, target)
            ops += model_ops
            after.append(residency)
        experts = list(self.experts)
        for model, before in enumerate(self.experts if increments else ()):
            if before is not None:
                expert_ops, experts[model] = move_boundaries(model, before, increments[model])
                ops += expert_ops
        for op in ops:
            if isinstance(op, Withdraw) and (n_blocks := n_referenced(op.lender, op.home)):
                raise HbmOverdrawn(f"home {op.home} of model {op.lender} still holds {n_blocks} blocks in use")
            if isinstance(op, Reload) and (n_blocks := n_referenced(op.model, op.increment)):
                raise HbmOverdrawn(f"increment {op.increment} of model {op.model} holds {n_blocks} blocks in use")
            if isinstance(op, HoldOnHost):
                self._refuse_units_in_use(op, n_referenced)
        return Plan(ops=tuple(ops), residencies=tuple(after), experts=tuple(experts))

    def _refuse_units_in_use(self, op: HoldOnHost, n_referenced: Callable[[int, int], int]) -> None:
        for unit in op.ended:
            if n_blocks := n_referenced(op.model, self.partitions[op.model].n_layers + unit):
                raise HbmOverdrawn(f"unit {unit} of model {op.model} on the host still holds {n_blocks} blocks in use")

    def commit(self, plan: Plan) -> None:
        """Enter a plan that a backend has carried out."""
        self.residencies = plan.residencies
        self.experts = plan.experts
        held = (residency.loans or residency.on_host for residency in self.residencies)
        self.anything_lent = any(held) or any(self.increments)

    def land(self, model: int, layer: int) -> tuple[Op, ...]:
        """Enter that a load has landed; the ops publish it."""
        ops, after = landed(model, self.residencies[model], layer)
        self.residencies = (*self.residencies[:model], after, *self.residencies[model + 1 :])
        return ops

    def holdings(self) -> dict[Holder, int]:
        """Pages by holder; they always add up to the device."""
        pages = {Holder(None, Use.UNASSIGNED): self.unassigned_pages}
        for model, (part, residency) in enumerate(zip(self.partitions, self.residencies, strict=True)):
            homes = {
                Use.RESIDENT: residency.n_layers - len(residency.cycling),
                Use.SLOTS: residency.n_slots,
                Use.LOADING: len(residency.loading),
                Use.LENT: len(residency.loans),
            }
            pages |= {Holder(model, use): n * part.home_pages for use, n in homes.items()}
            pages |= self._expert_pages(model, pages[Holder(model, Use.RESIDENT)])
            pages[Holder(model, Use.OTHER_WEIGHTS)] = part.other_pages
            pages[Holder(model, Use.ACTIVATIONS)] = part.activation_pages
            pages[Holder(model, Use.KV_BASE)] = part.kv_pages
        return pages

    def _expert_pages(self, model: int, resident_pages: int) -> dict[Holder, int]:
        """Of the pages of resident layers, those that hold no experts now; and the buffers."""
        experts, part = self.experts[model], self.partitions[model]
        if experts is None:
            return {}
        offloaded_pages = experts.offloaded_bytes // experts.layout.page_bytes
        return {
            Holder(model, Use.RESIDENT): resident_pages - offloaded_pages,
            Holder(model, Use.OFFLOADED): offloaded_pages,
            Holder(model, Use.STAGING): part.staging_pages,
        }

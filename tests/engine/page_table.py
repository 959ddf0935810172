"""HBM page by page, and ops carried out on it to the letter; what makes no sense is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from policies.memory.experts import Offload, Reload
from policies.memory.layout import KvLayout
from policies.memory.ledger import Holder, Ledger, Use
from policies.memory.ops import Cycle, HoldOnHost, Lend, Load, MoveBlocks, Op, Withdraw
from policies.memory.residency import HostKv


@dataclass(frozen=True, slots=True)
class Content:
    """What a page holds: ``use`` is ``None`` while it holds nothing, ``what`` names a layer or a borrower."""

    model: int | None
    use: Use | None
    what: int | None = None


class PageTable:
    """The pages of a device, at first as the ledger has them."""

    def __init__(self, ledger: Ledger, layouts: list[KvLayout]) -> None:
        self.pages: list[Content] = [Content(None, Use.UNASSIGNED)] * ledger.unassigned_pages
        self._homes: list[list[range]] = []
        self._cycling: list[frozenset[int]] = [frozenset() for _ in ledger.partitions]
        self._landed: set[tuple[int, int]] = set()
        self._layouts = layouts
        self._on_host: list[HostKv | None] = [None] * len(layouts)
        for model, part in enumerate(ledger.partitions):
            homes: list[range] = []
            for layer in range(part.n_layers):
                homes.append(self._append(Content(model, Use.RESIDENT, layer), part.home_pages))
            self._homes.append(homes)
            self._append(Content(model, Use.OTHER_WEIGHTS), part.other_pages)
            self._append(Content(model, Use.ACTIVATIONS), part.activation_pages)
            self._append(Content(model, Use.KV_BASE), part.kv_pages)

    def holdings(self) -> dict[Holder, int]:
        """Pages by holder, as a ledger counts them; none may be empty."""
        counts = Counter((content.model, content.use) for content in self.pages)
        held: dict[Holder, int] = {}
        for (model, use), n_pages in counts.items():
            assert use is not None, f"{n_pages} pages of model {model} hold nothing"
            held[Holder(model, use)] = n_pages
        return held

    def is_mapped(self, model: int, block: int) -> bool:
        """Whether a block of a model's KV address range has pages behind it, or lies on the host."""
        layout, on_host = self._layouts[model], self._on_host[model]
        if block < layout.n_base_blocks:
            return True
        if block >= layout.first_host_block:
            return on_host is not None and block < layout.first_host_block + on_host.n_units * on_host.unit_blocks
        for lender, homes in enumerate(self._homes):
            for home in range(len(homes)):
                first, n_blocks = layout.range_of(lender, home)
                if first <= block < first + n_blocks:
                    return self._at(lender, home) == Content(lender, Use.LENT, model)
        return False

    def carry_out(self, op: Op) -> None:
        """Do what an op says.

        Raises:
            AssertionError, KeyError: it makes no sense now.
        """
        match op:
            case Withdraw(lender, home, borrower):
                assert self._at(lender, home) == Content(lender, Use.LENT, borrower), op
                self._put(lender, home, None)
            case Cycle(model, cycling, slots):
                self._cycle(model, frozenset(cycling), slots)
            case Load(model, layer, home):
                assert self._at(model, home).use is None, op
                assert layer in self._cycling[model], op
                self._put(model, home, Use.LOADING, layer)
            case Lend(lender, home, borrower):
                assert self._at(lender, home).use is None, op
                self._put(lender, home, Use.LENT, borrower)
            case HoldOnHost(model, before, after):
                assert self._on_host[model] == before != after, op
                self._on_host[model] = after
            case Offload() | Reload():
                raise AssertionError(op)  # models of layers have no experts
            case MoveBlocks(model, moves, _):
                blocks = [block for pair in moves for block in pair]
                assert len({*blocks}) == len(blocks), op
                assert all(self.is_mapped(model, block) for block in blocks), op

    def land(self, model: int, layer: int) -> None:
        """The weights of a layer are in the home that is being loaded: it may leave the cycle."""
        assert Content(model, Use.LOADING, layer) in [self._at(model, home) for home in self._all(model)]
        self._landed.add((model, layer))

    def n_cycling_and_slots(self, model: int) -> tuple[int, int]:
        """Layers that cycle, and slots in which they do."""
        slots = [home for home in self._all(model) if self._at(model, home).use is Use.SLOTS]
        return len(self._cycling[model]), len(slots)

    def _cycle(self, model: int, cycling: frozenset[int], slots: tuple[int, ...]) -> None:
        for home in self._all(model):
            content = self._at(model, home)
            if content.use is Use.SLOTS or (content.use is Use.RESIDENT and content.what in cycling):
                self._put(model, home, None)
            if content.use is Use.LOADING and content.what is not None and content.what not in cycling:
                self._landed.remove((model, content.what))  # refuses to use weights that are not there
                self._put(model, home, Use.RESIDENT, content.what)
        for home in slots:
            assert self._at(model, home).use is None, f"slot {home} of model {model} holds {self._at(model, home)}"
            self._put(model, home, Use.SLOTS)
        resident = {
            self._at(model, home).what for home in self._all(model) if self._at(model, home).use is Use.RESIDENT
        }
        for layer in sorted({*self._all(model)} - cycling - resident):  # at rest in what was its slot
            empty = [home for home in self._all(model) if self._at(model, home).use is None]
            self._put(model, layer if layer in empty else empty[0], Use.RESIDENT, layer)
        self._cycling[model] = cycling

    def _all(self, model: int) -> range:
        return range(len(self._homes[model]))

    def _at(self, model: int, home: int) -> Content:
        (content,) = {self.pages[page] for page in self._homes[model][home]}
        return content

    def _put(self, model: int, home: int, use: Use | None, what: int | None = None) -> None:
        for page in self._homes[model][home]:
            self.pages[page] = Content(model, use, what)

    def _append(self, content: Content, n_pages: int) -> range:
        first = len(self.pages)
        self.pages += [content] * n_pages
        return range(first, first + n_pages)

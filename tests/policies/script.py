"""A hand-driven memory for tests of policies: no engine, no scheduler, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from policies.decision import Decision
from policies.memory.ledger import Ledger, Partition
from policies.policy import Policy
from policies.types import GIB, MIB, HardwareProfile, LinkProfile, ModelShape
from policies.view import Ask, MemoryView, ModelView, RangeView

LINK = LinkProfile(h2d_bytes_per_s=100 * 10**9, d2h_bytes_per_s=100 * 10**9, joint_bytes_per_s=100 * 10**9)
GPU = HardwareProfile(name="gpu", hbm_bytes=40 * GIB, hbm_bytes_per_s=10**12, page_bytes=2 * MIB, link=LINK)


def shape(name: str, n_layers: int) -> ModelShape:
    return ModelShape(
        name=name, n_layers=n_layers, hidden=8, n_heads=1, n_kv_heads=1, head_dim=8, ffn=8, vocab=8, gated_mlp=False,
        layer_bytes=100 * MIB, total_bytes=(n_layers + 1) * 100 * MIB, max_context_tokens=2048,
    )  # fmt: skip


@dataclass
class Script:
    """Models whose views a test sets by hand; decisions are enacted on a real ledger."""

    policy: Policy
    n_layers: list[int]
    priorities: list[int | None]
    active: int = 0
    step: int = 0
    blocks_per_home: int = 10
    n_base_blocks: int = 100
    layer_ns: int = 5_000_000
    rest_ns: int = 0
    last_active: list[int | None] = field(default_factory=list[int | None])
    referenced: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    n_free: dict[int, int] = field(default_factory=dict[int, int])
    memory: object = None

    def __post_init__(self) -> None:
        self.last_active = self.last_active or [None] * len(self.n_layers)
        self.ledger = Ledger(
            20_000,
            [
                Partition(name=str(i), n_layers=n, home_pages=50, other_pages=50, activation_pages=0, kv_pages=100)
                for i, n in enumerate(self.n_layers)
            ],
        )

    def view(self, ask: Ask) -> MemoryView:
        return MemoryView(
            step=self.step,
            ask=ask,
            asker=self.active,
            n_short_blocks=1 if ask in (Ask.RUNNING_SHORT, Ask.WAITING_SHORT) else 0,
            hardware=GPU,
            models=tuple(self._model(index) for index in range(len(self.n_layers))),
            ranges=tuple(
                RangeView(
                    lender=lender,
                    home=loan.home,
                    borrower=loan.borrower,
                    n_blocks=self.blocks_per_home,
                    n_referenced=int((lender, loan.home) in self.referenced),
                )
                for lender, residency in enumerate(self.ledger.residencies)
                for loan in residency.loans
            ),
            policy_memory=self.memory,
        )

    def ask(self, ask: Ask) -> Decision:
        """Ask once, enact the answer, let every load land at once."""
        decision = self.policy.decide(self.view(ask))
        self.memory = decision.policy_memory
        plan = self.ledger.plan(decision.targets, lambda lender, home: int((lender, home) in self.referenced))
        self.ledger.commit(plan)
        for model, residency in enumerate(self.ledger.residencies):
            for layer, _ in residency.loading:
                self.ledger.land(model, layer)
        return decision

    def lent(self) -> list[int]:
        return [len(residency.loans) for residency in self.ledger.residencies]

    def _model(self, index: int) -> ModelView:
        n_layers = self.n_layers[index]
        loans = sum(loan.borrower == index for residency in self.ledger.residencies for loan in residency.loans)
        n_blocks = self.n_base_blocks + loans * self.blocks_per_home
        model = shape(str(index), n_layers)
        return ModelView(
            shape=model,
            residency=self.ledger.residencies[index],
            priority=self.priorities[index],
            is_active=index == self.active,
            last_active_step=self.last_active[index],
            n_waiting=0,
            n_running=1,
            n_base_blocks=self.n_base_blocks,
            n_blocks=n_blocks,
            n_free_blocks=min(n_blocks, self.n_free.get(index, n_blocks)),
            blocks_per_home=tuple(self.blocks_per_home for _ in self.n_layers),
            fetch_ns=LINK.fetch_ns(model.layer_bytes),
            decode_ns=self.layer_ns * n_layers,
            rest_ns=self.rest_ns,
            prefill_ns=10**12,
            weights_ns=10**6,
            block_bytes=1,
        )


def with_ranges_in_use(view: MemoryView) -> MemoryView:
    """The same view with every lent range in use."""
    return replace(view, ranges=tuple(replace(lent, n_referenced=1) for lent in view.ranges))

"""What ranks are sent arrives as it was, whether the modules of either side are plain or compiled."""

from __future__ import annotations

import pickle
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from executor.plan import Plan
from executor.ranks.commands import CarryOut
from executor.ranks.sending import SENT, allow_sending
from policies.memory import experts, ops
from policies.memory.residency import HostKv, HostUse
from tests.executor.backend.stage import Setting, Size, open_books, plan_of

numbers = st.integers(0, 2**40)
indices = st.tuples(numbers, numbers)
held = st.none() | st.builds(
    HostKv,
    n_units=st.integers(1, 9),
    unit_blocks=st.integers(1, 9),
    unit_bytes=st.integers(1, 9),
    use=st.sampled_from(HostUse),
)
any_op = st.one_of(
    st.builds(ops.Withdraw, lender=numbers, home=numbers, borrower=numbers),
    st.builds(ops.Cycle, model=numbers, cycling=indices, slots=indices),
    st.builds(ops.Load, model=numbers, layer=numbers, home=numbers),
    st.builds(ops.Lend, lender=numbers, home=numbers, borrower=numbers),
    st.builds(ops.MoveBlocks, model=numbers, moves=st.tuples(indices, indices), block_bytes=numbers),
    st.builds(ops.HoldOnHost, model=numbers, before=held, after=held),
)


def sent(value: object) -> object:
    """What arrives at another rank."""
    allow_sending()
    return pickle.loads(pickle.dumps(value))


def test_every_op_there_is_and_all_that_a_rank_is_told_of_memory_can_be_sent() -> None:
    assert {kind for kind in get_args(ops.Op) if kind.__module__ == ops.__name__} <= set(SENT)


@given(st.lists(any_op).map(tuple))
def test_ops_arrive_as_they_were(asked: tuple[ops.Op, ...]) -> None:
    arrived = sent(CarryOut(asked))
    assert isinstance(arrived, CarryOut)
    assert arrived.ops == asked


@given(st.builds(experts.Offload, model=numbers, increment=numbers, groups=st.tuples(indices)))
def test_ops_on_experts_arrive_as_they_were(op: experts.Offload) -> None:
    assert sent(op) == op


def test_a_plan_arrives_as_it_was() -> None:
    setting = Setting(size=Size(hidden=64, head_dim=16, dtype_bytes=8), n_ranks=2)
    plan = plan_of(setting, *open_books(setting))
    arrived = sent(plan)
    assert arrived == plan
    assert isinstance(arrived, Plan)
    assert [model.extents for model in arrived.models] == [model.extents for model in plan.models]

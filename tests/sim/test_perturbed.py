from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, stdev

from policies.types import Work
from sim.compute.moe import LayerTimes
from sim.compute.perturbed import PROMPT_TOKENS, Deviation, PerturbedExperts


@dataclass
class TwoKinds:
    """A rank with two kinds of layers, of constant times."""

    kinds: tuple[LayerTimes, LayerTimes] = field(
        default=(
            LayerTimes(mixer_ns=10_000, gate_up_ns=40_000, down_ns=20_000, reduce_ns=5_000),
            LayerTimes(mixer_ns=30_000, gate_up_ns=40_000, down_ns=20_000, reduce_ns=5_000),
        )
    )

    def layers(self, work: Work) -> list[LayerTimes]:  # noqa: ARG002
        return [self.kinds[0], self.kinds[1], self.kinds[0]]

    def head_ns(self, work: Work) -> int:  # noqa: ARG002
        return 7

    def host_ns(self, work: Work) -> int:  # noqa: ARG002
        return 9


def decodes(n: int) -> Work:
    return Work(
        n_prefill_tokens=0,
        n_prefill_seqs=0,
        prefill_pairs=0,
        n_decode_seqs=n,
        decode_context_tokens=1000 * n,
        n_sampled=n,
    )


def test_factors_deviate_around_one_as_much_as_was_asked() -> None:
    of = Deviation(0.02, "compute 0")
    factors = [of.factor(decodes(n)) for n in range(1, 2001)]
    assert abs(fmean(factors) - 1) < 0.002  # 0.02 / sqrt(2000) is 0.0005
    assert abs(stdev(factors) - 0.02) < 0.002


def test_steps_of_one_size_are_off_alike_and_seeds_differ() -> None:
    one, same, other = Deviation(0.02, "compute 0"), Deviation(0.02, "compute 0"), Deviation(0.02, "compute 1")
    assert one.factor(decodes(5)) == one.factor(decodes(5)) == same.factor(decodes(5))
    assert one.factor(decodes(5)) != other.factor(decodes(5))
    assert PROMPT_TOKENS == 256


def test_every_part_of_every_layer_of_experts_is_off_by_the_factor() -> None:
    plain = TwoKinds()
    off = PerturbedExperts(plain, 0.1, "compute 3")
    factor = Deviation(0.1, "compute 3").factor(decodes(4))
    for before, after in zip(plain.layers(decodes(4)), off.layers(decodes(4)), strict=True):
        assert after.mixer_ns == round(before.mixer_ns * factor)
        assert after.all_ns == round(before.mixer_ns * factor) + round(40_000 * factor) + round(20_000 * factor) + 2 * (
            round(5_000 * factor)
        )
    first, _, third = off.layers(decodes(4))
    assert first is third
    assert (off.head_ns(decodes(4)), off.host_ns(decodes(4))) == (7, 9)

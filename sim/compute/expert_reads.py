"""Times of a layer's experts, by who is routed: decodes, a prompt, or several of both in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.types import Work
from sim.compute.curve import Curve
from traces.measured.device_tables import Part, Timing
from traces.measured.expert_tables import ExpertTimings


@dataclass(frozen=True, slots=True)
class Routed:
    """Experts of steps of one kind, over tokens.

    Attributes:
        ns: time of a layer's; more tokens never take less, for they read no fewer.
        n_used: how many different ones.
    """

    ns: Curve
    n_used: Curve

    @classmethod
    def of(cls, timings: Sequence[Timing]) -> Routed:
        """Read those of one kind."""
        ns = Curve(((each.n_tokens, each.ns) for each in timings), rising=True)
        return cls(ns, Curve(((each.n_tokens, each.n_experts) for each in timings), rising=True))


class ExpertReads:
    """Times of the experts of a layer in any step.

    Decodes alone, and a prompt alone, take what they were measured to take. Prompts together, and prompts beside
    decodes, take what one prompt of as many tokens does, and the time to read the experts that only the others use:
    sequences choose independently of each other, so those that u of E are free of both have shares 1 - u/E, multiplied.

    Args:
        table: what was measured.

    Raises:
        ValueError: experts were not measured for decodes and for a prompt.
    """

    def __init__(self, table: ExpertTimings) -> None:
        timings = table.of(Part.EXPERTS)
        decodes = [each for each in timings if each.n_seqs == each.n_tokens]
        prompts = [each for each in timings if each.n_seqs == 1]  # one token is both
        if len(decodes) < 2 or len(prompts) < 2:
            raise ValueError(
                f"the table of {table.shape.name} lacks experts of decodes or of a prompt; measure it again, or set "
                "compute=roofline"
            )
        self._n_experts = table.shape.n_experts
        self._decodes, self._prompt = Routed.of(decodes), Routed.of(prompts)
        self._read = _read_of_one(decodes)

    def decodes_ns(self, n_seqs: int) -> int:
        """Experts of a step that only decodes."""
        return self._decodes.ns(n_seqs)

    def ns(self, work: Work) -> int:
        """Experts of a step with prompts."""
        alone_ns, n_alone = self._prompt.ns(work.n_tokens), self._prompt.n_used(work.n_tokens)
        more_ns, more = self._read
        return alone_ns + max(0, self._n_used(work) - n_alone) * more_ns // more

    def _n_used(self, work: Work) -> int:
        """Different experts of all its sequences together, prompts taken as equally long."""
        n, n_prompts = self._n_experts, work.n_prefill_seqs
        in_a_prompt = min(n, self._prompt.n_used(work.n_prefill_tokens // n_prompts))
        in_decodes = min(n, self._decodes.n_used(work.n_decode_seqs)) if work.n_decode_seqs else 0
        n_free = n * (n - in_a_prompt) ** n_prompts * (n - in_decodes) // n ** (n_prompts + 1)
        return n - n_free


def _read_of_one(decodes: Sequence[Timing]) -> tuple[int, int]:
    """Time to read an expert more, as a ratio: of steps of decodes, up to the first that uses most of what any does."""
    most = max(each.n_experts for each in decodes)
    first = min(decodes, key=lambda each: each.n_tokens)
    last = min((each for each in decodes if 2 * each.n_experts > most), key=lambda each: each.n_tokens)
    return max(0, last.ns - first.ns), max(1, last.n_experts - first.n_experts)

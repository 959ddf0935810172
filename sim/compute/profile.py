"""Compute times from a layer profile: the kernels of a step under vLLM, added up.

Outside the layers are the embedding, the last norm, and what is profiled per sequence (head, sampler); all else is once
in every layer, but for ``layernorm``, of which a layer has two. Where experts were profiled all layers have them, and
the dense MLP of the first few, that some such models have, is left out.

What a step takes on a server differs from the sum of its kernels as they were profiled:

- A server that captures CUDA graphs pads the tokens of a small step to the next size (``Graphs``). Attention sees
  the real ones; under a full graph it is set up for as many decodes as that.
- The profile launches kernel by kernel, each onto an idle device (``enforce_eager``), so each
  includes how long the device takes to begin and to end. Where a kernel follows another at once, that is hidden.
  What it takes is measured by the kernels that do next to nothing: those without weights, at the fewest tokens. Their
  median comes off every kernel, if kernels are launched ahead.
- Sums over tensor-parallel ranks (``Links``) were not profiled: they are added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median_low
from typing import cast

from policies.types import NS_PER_S, ModelShape, Work, one_token_later
from sim.compute.attention import Attention
from sim.compute.base import ends_of
from sim.compute.curve import Curve
from sim.compute.grid import Grid
from sim.compute.routing import uniform
from traces.measured.layer_profile import LayerProfile

ONCE = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
MLP = ("gate_up_proj", "act_fn", "down_proj")
WITHOUT_WEIGHTS = ("embedding", "final_layernorm", "layernorm", "qk_norm", "rotary_emb", "act_fn")
"""Names of LLMServingSim's catalogues (profiler/models/*.yaml)."""

ATTENTION_KERNELS = 2
"""Storing K and V, and attention itself (vLLM's FlashAttention backend)."""

ACTIVATION_BYTES = 2
"""bf16 or fp16, whatever the weights are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """How a server launches the kernels of a step.

    Attributes:
        decode_sizes, other_sizes: tokens to which steps of decodes alone, and others, are padded that run from CUDA
            graphs, increasing; empty: no graphs.
        full_decodes: steps of decodes alone are one graph, attention included.
        ahead: a kernel is launched before the one before it has ended.
    """

    decode_sizes: Sequence[int] = ()
    other_sizes: Sequence[int] = ()
    full_decodes: bool = False
    ahead: bool = False

    def padded(self, work: Work) -> int:
        """As many tokens as the step is run with."""
        sizes = self._sizes(work)
        return sizes[bisect_left(sizes, work.n_tokens)] if self.holds(work) else work.n_tokens

    def holds(self, work: Work) -> bool:
        """Whether there is a graph that is large enough."""
        sizes = self._sizes(work)
        return bool(sizes) and work.n_tokens <= sizes[-1]

    def _sizes(self, work: Work) -> Sequence[int]:
        return self.other_sizes if work.n_prefill_tokens else self.decode_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What ranks exchange, in rings.

    A sum of B bytes over p ranks takes 2 (p - 1) turns of B / p bytes, gathering or scattering them half as many.

    Attributes:
        n_ranks: over which every layer is cut.
        n_expert_ranks: over which the experts are spread, 1: not at all.
        bytes_per_s, latency_ns: of one turn.
        hidden, vocab: of the model.
    """

    n_ranks: int
    n_expert_ranks: int = 1
    bytes_per_s: int
    latency_ns: int
    hidden: int
    vocab: int

    def sum_ns(self, n_tokens: int) -> int:
        """Add up the hidden states of so many tokens over the tensor-parallel ranks."""
        return 2 * self.gather_ns(n_tokens * self.hidden * ACTIVATION_BYTES, self.n_ranks)

    def gather_ns(self, n_bytes: int, n_ranks: int) -> int:
        """Give every rank what all of them have, ``n_bytes`` together."""
        if n_ranks == 1:
            return 0
        return (n_ranks - 1) * (self.latency_ns + n_bytes * NS_PER_S // (n_ranks * self.bytes_per_s))


class ProfileModel:
    """The times of one model on one GPU, or on as many ranks as were profiled: a ``ComputeModel``.

    Args:
        links: between ranks; ``None``: there is one.

    Raises:
        ValueError: the profile lacks what a step needs.
    """

    def __init__(self, profile: LayerProfile, *, graphs: Graphs | None = None, links: Links | None = None) -> None:
        self.profile = profile
        self._graphs = graphs or Graphs()
        self._links = links
        begin_ns = _begin_ns(profile) if self._graphs.ahead else 0
        self._once = [_curve(points, begin_ns) for name, points in profile.per_token.items() if name in ONCE]
        absent = (*ONCE, *(MLP if profile.experts else ()))
        in_layer = {name: points for name, points in profile.per_token.items() if name not in absent}
        self._in_layer = [(2 if name in TWICE else 1, _curve(points, begin_ns)) for name, points in in_layer.items()]
        self._head = [_curve(points, begin_ns) for points in profile.per_sequence.values()]
        self._attention = Attention(profile.attention, profile.uneven)
        self._attention_begin_ns = ATTENTION_KERNELS * begin_ns
        self._experts = _experts(profile, links, begin_ns)
        self._others_ns: dict[int, int] = {}

    def layer_ns(self, work: Work, longest_tokens: int = 0, rows: Sequence[int] = ()) -> int:
        """Device time of one layer.

        Args:
            longest_tokens: the longest context among the decodes, 0 if it is not known.
            rows: tokens with which this engine runs the step, and with which others do that share its experts.
        """
        n_run, *others = rows or (self._graphs.padded(work),)
        n_set_up = n_run if self._graphs.full_decodes else work.n_decode_seqs
        attention_ns = self._attention.ns(work, longest_tokens, n_set_up)
        layer_ns = self._dense_ns(n_run) + max(0, attention_ns - self._attention_begin_ns)
        if self._experts is not None:
            layer_ns += self._experts.ns(n_run + sum(others))
        return max(1, layer_ns)

    def rows_together(self, works: Sequence[Work]) -> list[int]:
        """Tokens with which engines run a step that share their experts, each padded like the largest if all run from
        graphs; one without requests takes part with one token."""
        rows = [max(1, self._graphs.padded(work)) for work in works]
        is_graphed = all(self._graphs.holds(work) for work in works)
        return [max(rows)] * len(rows) if is_graphed else rows

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Sequence[int]:
        """Device time of one layer in each of ``n_steps`` repetitions of a decode step."""
        return [self.layer_ns(one_token_later(work, nth) if nth else work) for nth in range(n_steps)]

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """See ``ends_of``."""
        return ends_of(self.repeated_layer_ns(work, n_steps), start_ns, n_layers, rest_ns, stop_ns)

    def head_ns(self, work: Work) -> int:
        """Device time outside the layers: embedding, last norm, logits, sampling."""
        n_run, links = self._graphs.padded(work), self._links
        head_ns = sum(curve(n_run) for curve in self._once)
        if links is not None:
            head_ns += links.sum_ns(n_run)
        if work.n_sampled:
            head_ns += sum(curve(work.n_sampled) for curve in self._head)
            if links is not None:
                head_ns += links.gather_ns(work.n_sampled * links.vocab * ACTIVATION_BYTES, links.n_ranks)
        return head_ns

    def host_ns(self, work: Work) -> int:
        """Nothing: a profile says nothing of the host, which works ahead of the device."""
        del work
        return 0

    def _dense_ns(self, n_tokens: int) -> int:
        """A layer without attention and experts."""
        known = self._others_ns.get(n_tokens)
        if known is None:
            known = sum(times * curve(n_tokens) for times, curve in self._in_layer)
            if self._links is not None:  # behind attention, and behind the MLP unless experts give tokens back
                known += (1 if self._links.n_expert_ranks > 1 else 2) * self._links.sum_ns(n_tokens)
            self._others_ns[n_tokens] = known
        return known


def profiled(profile: LayerProfile, shape: ModelShape) -> ProfileModel:
    """Take a profile for a model, launched kernel by kernel as it was profiled.

    Raises:
        ValueError: it is of a model of another shape, as far as it says so.
    """
    its = _named(_named(profile.about.get("engine_effective")).get("hf_overrides"))
    wanted = {
        "intermediate_size": shape.ffn,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "vocab_size": shape.vocab,
    }
    if differ := [f"{name} {its[name]} there, {n} here" for name, n in wanted.items() if its.get(name, n) != n]:
        raise ValueError(
            f"{profile.folder} is of another model than {shape.name}: {', '.join(differ)}; profile this one"
        )
    return ProfileModel(profile)


def _named(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


class Experts:
    """The mixture of experts of one layer, every token routed to any experts with equal chances.

    How many experts there are, and how many a token has, is what was measured: the most, and that of one token.
    Of another degree of expert parallelism than was measured, a rank is taken to have its part of tokens and experts.
    """

    def __init__(self, profile: LayerProfile, n_ranks: int, links: Links | None, begin_ns: int) -> None:
        self._n_measured = min({each.n_ranks for each in profile.experts}, key=lambda n: (abs(n - n_ranks), n))
        timings = [each for each in profile.experts if each.n_ranks == self._n_measured]
        least = min(each.n_tokens for each in timings)
        n_experts = max(each.n_experts for each in timings)
        n_active = min(each.n_experts for each in timings if each.n_tokens == least) / least
        self._routing = uniform(n_experts, max(1, round(n_active)))
        self._times = Grid(((each.n_tokens, each.n_experts), each.ns) for each in timings)
        self._n_ranks = n_ranks
        self._links = links
        self._begin_ns = begin_ns
        self.ns = cache(self._ns)

    def _ns(self, n_tokens: int) -> int:
        """Duration of one layer's experts, gathering and scattering tokens included."""
        n_experts = self._routing.n_distinct(n_tokens)
        here = self._n_measured, self._n_ranks
        ns = self._times(_part(n_tokens, *here), _part(n_experts, *here))
        if self._links is not None and self._links.n_expert_ranks > 1:
            n_bytes = n_tokens * self._links.hidden * ACTIVATION_BYTES
            ns += 2 * self._links.gather_ns(n_bytes, self._links.n_expert_ranks)
        return max(0, ns - self._begin_ns)


def _part(n: int, n_measured: int, n_ranks: int) -> int:
    return -(-n * n_measured // n_ranks)


def _experts(profile: LayerProfile, links: Links | None, begin_ns: int) -> Experts | None:
    if profile.experts:
        return Experts(profile, links.n_expert_ranks if links is not None else 1, links, begin_ns)
    if not any(name.endswith("down_proj") for name in profile.per_token):
        raise ValueError(f"{profile.folder}: neither down_proj in dense.csv nor moe.csv; profile the whole layer")
    return None


def _begin_ns(profile: LayerProfile) -> int:
    """What a kernel with next to nothing to do takes, 0 if there is none."""
    least = [points[0][1] for name, points in profile.per_token.items() if name in WITHOUT_WEIGHTS]
    return median_low(least) if least else 0


def _curve(points: Sequence[tuple[int, int]], begin_ns: int) -> Curve:
    return Curve((at, max(0, ns - begin_ns)) for at, ns in points)

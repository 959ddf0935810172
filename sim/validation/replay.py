"""A real server's run, served again: its scheduler, its block count, its requests, and its layers' measured times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from policies.engine import Outcome
from policies.lane import TrueLengths
from policies.serving.sequence import Sequence as Seq
from policies.serving.sequence import State
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.serving.vllm_v1.scheduler import VllmV1
from policies.serving.vllm_v1.settings import V1Settings
from policies.types import Arrival
from sim.compute.profile import Graphs, Links, ProfileModel
from sim.linear import serve_alone
from sim.validation.peers import Peers
from sim.validation.step_time import ProfiledTime
from sim.validation.watch import Watch
from traces.measured.layer_profile import LayerProfile
from traces.measured.server_log import Sample, Served, ServerRun
from traces.measured.server_settings import FULL, ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a layer profile does not say of a model; hidden size and vocabulary matter between ranks only."""

    n_layers: int
    hidden: int | None = None
    vocab: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of it, in the order of the run's requests and samples.

    Attributes:
        n_preemptions, n_recomputed, n_hits: preemptions; tokens computed again; tokens found in the prefix cache.
    """

    requests: Sequence[Served]
    samples: Sequence[Sample]
    n_steps: int
    n_preemptions: int
    n_recomputed: int
    n_hits: int


def replay(run: ServerRun, profile: LayerProfile, size: ModelSize) -> Replayed:
    """Serve a run's requests again.

    Engines of a model with experts step together and share requests by their loads (``Peers``); others each get every
    n-th request.

    Raises:
        ValueError: the profile lacks what the run needs, or a request can never run.
    """
    settings = run.settings
    model = ProfileModel(
        profile,
        graphs=_graphs(settings),
        links=_links(run, size),
    )
    n_engines, arrivals = settings.n_engines, run.arrivals()
    if profile.experts:
        watches = [_serve(run, arrivals, model, size, n_together=n_engines)]
    else:
        watches = [_serve(run, arrivals[nth::n_engines], model, size, n_together=1) for nth in range(n_engines)]
    ended = {seq.request.request_id: seq for watch in watches for seq in watch.ended}
    return Replayed(
        requests=[_served(ended[number], its) for number, its in enumerate(run.requests)],
        samples=[_sample(watches, sample.at_ns) for sample in run.samples],
        n_steps=sum(len(watch.states) for watch in watches),
        n_preemptions=sum(seq.n_preemptions for seq in ended.values()),
        n_recomputed=sum(seq.n_recomputed for seq in ended.values()),
        n_hits=sum(seq.n_hit_tokens for seq in ended.values()),
    )


def _serve(
    run: ServerRun, arrivals: Sequence[Arrival], model: ProfileModel, size: ModelSize, *, n_together: int
) -> Watch:
    its = run.settings
    longest = max((arrival.request.n_prompt_tokens + arrival.n_output_tokens for arrival in arrivals), default=0)
    settings = V1Settings(
        max_num_batched_tokens=its.max_num_batched_tokens,
        max_model_len=its.max_model_len,
        block_tokens=its.block_tokens,
        max_num_seqs=its.max_num_seqs,
        chunked_prefill=its.chunked_prefill,
        prefix_caching=its.prefix_caching,
        async_scheduling=its.async_scheduling,
        long_prefill_tokens=its.long_prefill_tokens,
        reserve_full_isl=its.reserve_full_isl,
    )
    if longest > its.max_model_len:
        raise ValueError(f"{run.folder}: a request of {longest} tokens exceeds max_model_len={its.max_model_len}")
    peers = Peers([VllmV1(settings, FreeQueuePool(its.n_blocks)) for _ in range(n_together)])
    time, watch = ProfiledTime(model, size.n_layers, peers), Watch(peers)
    outcome, _ = serve_alone(peers, iter(arrivals), truth=TrueLengths(), time=time, journal=watch, gives_up=True)
    if outcome is not Outcome.DONE or len(watch.ended) < len(arrivals):
        n_left = len(arrivals) - len(watch.ended)
        raise ValueError(f"{run.folder}: {n_left} requests can never run in {its.n_blocks} blocks; look at meta.json")
    return watch


def _served(seq: Seq, its: Served) -> Served:
    assert seq.state is State.FINISHED
    assert seq.first_token_ns is not None
    assert seq.last_token_ns is not None
    return Served(
        arrival_ns=its.arrival_ns,
        n_prompt=its.n_prompt,
        n_output=its.n_output,
        first_token_ns=seq.first_token_ns,
        last_token_ns=seq.last_token_ns,
    )


def _sample(watches: Sequence[Watch], at_ns: int) -> Sample:
    """All engines together, each as it was after the last step that ended before then."""
    states = [_state_before(watch.states, at_ns) for watch in watches]
    return Sample(
        at_ns=at_ns,
        n_running=sum(state.n_running for state in states),
        n_waiting=sum(state.n_waiting for state in states),
        kv_share=sum(state.kv_share for state in states) / len(states),
    )


def _state_before(states: Sequence[Sample], at_ns: int) -> Sample:
    after = bisect_left(states, at_ns, key=lambda state: state.at_ns)
    return states[after - 1] if after else Sample(at_ns=at_ns, n_running=0, n_waiting=0, kv_share=0.0)


def _graphs(settings: ServerSettings) -> Graphs:
    sizes = settings.graph_sizes
    return Graphs(
        decode_sizes=sizes if settings.decode_graphs else (),
        other_sizes=sizes if settings.other_graphs else (),
        full_decodes=settings.decode_graphs == FULL,
        ahead=not settings.is_eager,
    )


def _links(run: ServerRun, size: ModelSize) -> Links | None:
    """How ranks exchange; ``None``: there is one."""
    its = run.settings
    n_expert_ranks = its.n_ranks * its.n_engines if its.spreads_experts else 1
    if max(its.n_ranks, n_expert_ranks) == 1:
        return None
    if its.link_bytes_per_s is None or its.link_latency_ns is None:
        raise ValueError(
            f"{run.folder / 'config.json'} has no link_bw (GB/s) and link_latency (ns), and the server had "
            f"{max(its.n_ranks, n_expert_ranks)} ranks; add those of its link between GPUs"
        )
    if size.hidden is None or size.vocab is None:
        raise ValueError(f"{its.model}: hidden size and vocabulary are not known; add it to conf/served_models.yaml")
    return Links(
        n_ranks=its.n_ranks,
        n_expert_ranks=n_expert_ranks,
        bytes_per_s=its.link_bytes_per_s,
        latency_ns=its.link_latency_ns,
        hidden=size.hidden,
        vocab=size.vocab,
    )

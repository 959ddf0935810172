"""One model on the device: from a batch of sequences to rows, a step, and sampled tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Generic, Protocol

import torch
from torch import Tensor

from executor.forward import Passed
from executor.models.step import Row
from executor.tokens import PromptTokens, Transcript
from executor.transfer.streams import Mark, Streams
from executor.transfer.swap import SwapSpace
from policies.backend import Batch
from policies.serving.sequence import Sequence, State

Watch = Callable[[int, Seq[Row], Tensor], None]
"""Is told lane, rows and final hidden states of every step; it makes the host wait for the device."""


class Forward(Protocol[Mark]):
    """Runs one step of one model."""

    def run(self, rows: Seq[Row]) -> Passed[Mark]:
        """Ask the device for a step of these rows, at least one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long the parts of a step took on the device, in ns.

    Attributes:
        swap_ns: the wait before it for swapped KV.
        compute_ns: its layers, without stalls.
        stall_ns: waits for fetched layers.
    """

    swap_ns: int
    compute_ns: int
    stall_ns: int


class ModelStep(Generic[Mark]):
    """A step that was asked of the device."""

    def __init__(
        self,
        streams: Streams[Mark],
        layers: tuple[Mark, Mark],
        swaps: Seq[tuple[Mark, Mark]],
        stalls: Seq[tuple[Mark, Mark]],
        end: Mark,
        enter_tokens: Callable[[], None],
    ) -> None:
        self._streams, self._layers, self._swaps, self._stalls = streams, layers, swaps, stalls
        self._end, self._enter_tokens = end, enter_tokens

    def is_done(self) -> bool:
        """Whether the device has finished it."""
        return self._streams.is_reached(self._end)

    def wait(self) -> None:
        """Wait until it has."""
        self._streams.wait(self._end)

    def finish(self) -> StepTimes:
        """Take its tokens and its times; it is done."""
        self._enter_tokens()
        between_ns = self._streams.between_ns
        stall_ns = sum(between_ns(*stall) for stall in self._stalls)
        return StepTimes(
            swap_ns=sum(between_ns(*swap) for swap in self._swaps),
            compute_ns=max(0, between_ns(*self._layers) - stall_ns),
            stall_ns=stall_ns,
        )


class ModelLane(Generic[Mark]):
    """Runs batches of one model and keeps what its sequences say.

    Args:
        max_rows: most sequences of a step.
        swap: where the KV of swapped sequences waits, ``None`` if none is ever swapped.
        watch: sees every step, for tests.
    """

    def __init__(
        self,
        index: int,
        forward: Forward[Mark],
        streams: Streams[Mark],
        prompts: PromptTokens,
        *,
        block_tokens: int,
        max_rows: int,
        pinned: bool,
        swap: SwapSpace[Mark] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._index, self._forward, self._streams, self._prompts = index, forward, streams, prompts
        self._block_tokens, self._swap, self._watch = block_tokens, swap, watch
        self._sampled = torch.zeros(max_rows, dtype=torch.int64, pin_memory=pinned)
        self._transcripts: dict[int, Transcript] = {}
        self._answers: dict[int, array[int]] = {}  # of forgotten requests that others may quote
        self._prune_at = 1024

    def n_steps_with_room(self, batch: Batch) -> int:
        """How many steps of the batch there are slots for: blocks of later ones are not taken before they have run."""
        rooms = [
            len(seq.blocks) * self._block_tokens - seq.n_computed for seq in batch.decodes if seq.state is State.RUNNING
        ]
        return min(rooms, default=1)

    def launch(self, batch: Batch, nth: int) -> ModelStep[Mark]:
        """Ask the device for the ``nth`` repetition of a batch.

        A sequence that has ended since it was composed has no blocks any more and is left out.
        """
        if nth == 0:
            self._move_swapped(batch)
        swaps = self._streams.take_stalls()
        known: list[tuple[Transcript, int]] = []
        rows = list(self._rows(batch, nth, known))
        if not rows:
            mark = self._streams.mark()
            return ModelStep(self._streams, (mark, mark), swaps, (), mark, lambda: None)
        passed = self._forward.run(rows)
        stalls = self._streams.take_stalls()
        with self._streams.computing():
            self._sampled[: len(known)].copy_(passed.sampled, non_blocking=True)
        end = self._streams.mark()
        if self._watch is not None:
            self._streams.wait(end)
            self._watch(self._index, rows, passed.hidden)

        def enter_tokens() -> None:
            for (transcript, n_tokens), token_id in zip(known, self._sampled.tolist(), strict=False):
                transcript.sampled(n_tokens, token_id)

        return ModelStep(self._streams, passed.layers, swaps, stalls, end, enter_tokens)

    def token_ids(self, request_id: int) -> Seq[int]:
        """Prompt and sampled tokens of a request that has run lately.

        Raises:
            KeyError: it never ran, or is forgotten.
        """
        return tuple(self._transcripts[request_id].token_ids)

    def save_victims(self) -> None:
        """Copy to the host what sequences leave behind that were swapped out since they last ran."""
        if self._swap is None:
            return
        for transcript in self._transcripts.values():
            seq = transcript.seq
            if seq.n_preemptions == transcript.n_preemptions or transcript.host_blocks:
                continue
            if seq.n_computed and seq.state in (State.SWAPPED, State.RUNNING):
                n_blocks = -(-seq.n_computed // self._block_tokens)
                transcript.host_blocks = self._swap.save(transcript.blocks[:n_blocks])
            transcript.n_preemptions = seq.n_preemptions

    def moved(self, moves: Seq[tuple[int, int]]) -> None:
        """Blocks of this model moved within HBM: (from, to)."""
        to = dict(moves)
        for transcript in self._transcripts.values():
            transcript.blocks = [to.get(block, block) for block in transcript.blocks]

    def _move_swapped(self, batch: Batch) -> None:
        if self._swap is None:
            return
        self.save_victims()
        for seq, _ in batch.rows:
            transcript = self._transcripts.get(seq.request.request_id)
            if transcript is None or not transcript.host_blocks:
                continue
            if seq.n_computed:
                self._swap.restore(transcript.host_blocks, seq.blocks[: len(transcript.host_blocks)])
            else:
                self._swap.discard(transcript.host_blocks)
            transcript.host_blocks = []

    def _rows(self, batch: Batch, nth: int, known: list[tuple[Transcript, int]]) -> Iterator[Row]:
        """Rows of the batch; to ``known`` is added who samples, behind how many tokens."""
        for prefill in batch.prefills:
            first = prefill.seq.n_computed + prefill.n_cached
            yield self._row(prefill.seq, first, prefill.n_tokens, prefill.samples, known)
        for seq in batch.decodes:
            if seq.state is State.RUNNING:
                yield self._row(seq, seq.n_computed + nth, 1, True, known)

    def _row(self, seq: Sequence, first: int, n_new: int, samples: bool, known: list[tuple[Transcript, int]]) -> Row:
        transcript = self._transcript(seq)
        token_ids = transcript.token_ids[first : first + n_new]
        assert len(token_ids) == n_new, f"{seq}: tokens {first}..{first + n_new - 1} are not known"
        if samples:
            known.append((transcript, first + n_new))
        return Row(token_ids=token_ids, n_before=first, blocks=seq.blocks, samples=samples)

    def _transcript(self, seq: Sequence) -> Transcript:
        transcript = self._transcripts.get(seq.request.request_id)
        if transcript is None:
            self._prune()
            transcript = Transcript(seq, self._prompts.of(seq.request, self._answer_of))
            self._transcripts[seq.request.request_id] = transcript
        transcript.blocks, transcript.n_preemptions = seq.blocks, seq.n_preemptions
        return transcript

    def _answer_of(self, request_id: int) -> Seq[int]:
        """What a request has answered so far; nothing if it is not known."""
        transcript = self._transcripts.get(request_id)
        return self._answers.get(request_id, ()) if transcript is None else transcript.answer

    def _prune(self) -> None:
        """Forget sequences that are gone, each time there are twice as many as were left the last time."""
        if len(self._transcripts) < self._prune_at:
            return
        for request_id, transcript in list(self._transcripts.items()):
            if transcript.seq.state in (State.FINISHED, State.DROPPED):
                if self._swap is not None:
                    self._swap.discard(transcript.host_blocks)
                if transcript.seq.request.prompt is not None:  # its tokens have names by which they may be quoted
                    self._answers[request_id] = array("i", transcript.answer)
                del self._transcripts[request_id]
        self._prune_at = max(1024, 2 * len(self._transcripts))

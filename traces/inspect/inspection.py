"""One reading of a trace file: what it is, what is in it, and everything odd about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from policies.types import NS_PER_S
from traces.formats import Detected, Entry, Spelling, detect, externally_sorted, read_entries
from traces.formats.records import ignored
from traces.formats.values import Clock
from traces.inspect.arrivals import LONG_GAP_NS, ArrivalStatistics
from traces.inspect.chains import ChainStatistics
from traces.inspect.lengths import LengthStatistics
from traces.inspect.oddities import Finds
from traces.inspect.prefixes import BlockCache, blocks_of
from traces.inspect.sessions import SessionStatistics

BLOCK_TOKENS = 512
"""Blocks in which contents are compared where the file has none of its own, as in the Mooncake traces."""

COARSE_NS = NS_PER_S

PLAUSIBLE_PER_S = (5e-3, 1e3)
"""Rates of single deployments: RAGPulse has 0.012 requests/s, Azure 2024 conversations 45."""


class Inspection:
    """One reading of a file in its own order; what it keeps does not grow with the rows, but with what is distinct.

    Args:
        time_unit: of times that are numbers; ``None``: as the file shows.
        cache_blocks: capacities of prefix caches to try, besides one without a limit.
        context_tokens: the longest request that a model takes.

    Raises:
        ValueError: the file cannot be read, is empty, or is of no known format.
    """

    def __init__(
        self,
        path: Path,
        *,
        time_unit: str | None = None,
        cache_blocks: Sequence[int] = (),
        context_tokens: int | None = None,
    ) -> None:
        self.path = path
        self.detected: Detected = detect(path)
        self.clock: Clock = self.detected.clock(time_unit)
        self.spelling = Spelling()
        self.finds = Finds()
        self.n_rows = 0
        self.n_failed = 0
        self.arrivals = ArrivalStatistics()
        self.prompts, self.outputs = LengthStatistics(), LengthStatistics()
        self.sessions = SessionStatistics()
        self.caches = [*(BlockCache(capacity) for capacity in cache_blocks), BlockCache(None)]
        self.chains = ChainStatistics(self.block_tokens)
        self.passages: dict[str, BlockCache] = {}
        self._time_unit = time_unit
        self._context_tokens = context_tokens
        self._lacking = Finds()
        self._is_ordered = True
        self._last: Entry | None = None
        for entry in read_entries(
            path, detected=self.detected, clock=self.clock, on_fault=self._fault, spelling=self.spelling
        ):
            self._take(entry)
        self._end()

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the prefix cache: the file's own blocks, where it has them."""
        layout = self.detected.format.layout
        return layout.block_tokens if layout is not None and layout.hashes is not None else BLOCK_TOKENS

    def _fault(self, line: int, what: str) -> None:
        self.finds.add("fault", line, what)

    def _take(self, entry: Entry) -> None:
        self.n_rows += 1
        self.n_failed += entry.is_failed
        self.prompts.add(entry.n_prompt)
        self.outputs.add(entry.n_output)
        for key in self._odd_alone(entry):
            self.finds.add(key, entry.line)
        for key, line in self.sessions.add(entry):
            self.finds.add(key, line)
        if entry.session is None:
            self._lacking.add("no_session", entry.line)
        if entry.prompt is None:
            self._lacking.add("no_identity", entry.line)
        else:
            self._ask_caches(entry)
        if entry.passages:
            self._count_passages(entry.passages)
        if entry.time_ns is not None:
            self._arrive(entry, entry.time_ns)
        self._last = entry

    def _odd_alone(self, entry: Entry) -> Iterable[str]:
        yield from entry.odd
        if entry.n_prompt == 0:
            yield "no_prompt"
        if entry.n_output == 0:
            yield "no_output"
        if entry.is_error:
            yield "error"
        if entry.time_ns is None:
            yield "no_time" if entry.think_ns is None else "turn_without_time"
        if self._context_tokens is not None and entry.n_prompt + entry.n_output > self._context_tokens:
            yield "overlong"

    def _ask_caches(self, entry: Entry) -> None:
        assert entry.prompt is not None
        layout = self.detected.format.layout
        is_own = layout is not None and layout.hashes is not None
        blocks = entry.prompt if is_own else blocks_of(entry.prompt, self.block_tokens)
        for cache in self.caches:
            cache.ask(blocks)
        if entry.session is None:
            self.chains.add(blocks, entry.n_prompt, entry.time_ns)

    def _count_passages(self, passages: tuple[str, ...]) -> None:
        for passage in passages:
            kind, _, _ = passage.partition(":")
            self.passages.setdefault(kind, BlockCache(None)).ask(((passage, 1),))

    def _arrive(self, entry: Entry, time_ns: int) -> None:
        last = self._last
        if last is not None and last.time_ns is not None:
            if time_ns < last.time_ns:
                self._is_ordered = False
                self.finds.add("out_of_order", entry.line, f"back by {(last.time_ns - time_ns) / NS_PER_S:g} s")
            elif (time_ns, entry.n_prompt, entry.n_output) == (last.time_ns, last.n_prompt, last.n_output):
                self.finds.add("same_as_before", entry.line)
        if self._is_ordered:
            self._count_arrival(self.arrivals, time_ns, entry.line)

    def _count_arrival(self, arrivals: ArrivalStatistics, time_ns: int, line: int) -> None:
        is_first = arrivals.n == 0
        gap_ns = arrivals.add(time_ns)
        if gap_ns > LONG_GAP_NS:
            self.finds.add("idle_gap", line, f"{gap_ns / NS_PER_S:g} s")
        if gap_ns == 0 and not is_first:
            self.finds.add("tie", line)

    def _end(self) -> None:
        if not self._is_ordered:
            self._sort()
        self._end_of_spelling()
        if not self.n_rows:
            self.finds.add("no_rows")
        if self.arrivals.are_even:
            self.finds.add("even_gaps", detail=f"{self.arrivals.longest_ns / NS_PER_S:g} s each")
        if self.arrivals.n_ties and self.arrivals.apart_ns >= COARSE_NS:
            self.finds.add(
                "coarse_times", detail=f"times that differ are {self.arrivals.apart_ns / NS_PER_S:g} s apart"
            )
        self._doubt_unit()
        for name, lengths in (("prompt", self.prompts), ("output", self.outputs)):
            for length, share in lengths.atoms():
                self.finds.add("atom", detail=f"{name} of {length}: {100 * share:.1f} %")
        for key, find in self._lacking.by_key.items():
            if find.count < self.n_rows:
                self.finds.by_key[key] = find
            elif key == "no_identity":
                self.finds.add("no_prefix_identity")

    def _doubt_unit(self) -> None:
        arrivals = self.arrivals
        if not self.clock.is_assumed or arrivals.n < 10 or not arrivals.span_ns:
            return
        rate_per_s = arrivals.n * NS_PER_S / arrivals.span_ns
        if not PLAUSIBLE_PER_S[0] <= rate_per_s <= PLAUSIBLE_PER_S[1]:
            self.finds.add("doubtful_unit", detail=f"{rate_per_s:.4g} requests/s in {self.clock.unit}")

    def _sort(self) -> None:
        """Take the arrivals once more, in order of time."""
        for key in ("tie", "idle_gap", "same_as_before"):
            self.finds.by_key.pop(key, None)
        clock = self.detected.clock(self._time_unit)
        again = read_entries(self.path, detected=self.detected, clock=clock, on_fault=ignored)
        rows = ((e.time_ns, e.n_prompt, e.n_output, e.line) for e in again if e.time_ns is not None)
        self.arrivals = ArrivalStatistics()
        before = None
        for time_ns, n_prompt, n_output, line in externally_sorted(rows, key=lambda row: row[0]):
            if before == (before := (time_ns, n_prompt, n_output)):
                self.finds.add("same_as_before", line)
            self._count_arrival(self.arrivals, time_ns, line)

    def _end_of_spelling(self) -> None:
        spelling, finds = self.spelling, self.finds
        if spelling.has_byte_order_mark:
            finds.add("byte_order_mark", 1)
        if spelling.n_crlf:
            finds.add("crlf", count=spelling.n_crlf)
        if not spelling.ends_with_line:
            finds.add("no_final_newline", spelling.n_lines)
        if spelling.n_blank:
            finds.add("blank_line", spelling.first_blank, count=spelling.n_blank)
        for column in self.detected.unknown:
            finds.add("unknown_column", detail=column)

"""What sequences that decode together have in common, kept once for all of them.

A batch of hundreds of sequences decodes for thousands of steps. Instead of counting each
step in each sequence, a sequence that joins a pace notes where it stood, and reads its
counts as the difference (``Sequence``).
"""

from __future__ import annotations

from bisect import bisect_left


class Pace:
    """Steps in which every member decodes one token.

    The scheduler owns the first group of fields, the engine the second.

    Attributes:
        n_members: sequences that keep this pace now.
        n_tokens: tokens that each member got since the pace began.
        n_slots: slots that each was given; ahead of ``n_tokens`` while a step is under way.
        awaits_check: the stop checks of the last step are still to come.

        last_token_ns: end of the last step.
        n_gaps: gaps noted so far; a member remembers how many there were when it joined.
    """

    __slots__ = ("_peaks", "awaits_check", "last_token_ns", "n_gaps", "n_members", "n_slots", "n_tokens")

    def __init__(self) -> None:
        self.n_members = 0
        self.n_tokens = 0
        self.n_slots = 0
        self.awaits_check = False

        self.last_token_ns = 0
        self.n_gaps = 0
        self._peaks: list[tuple[int, int]] = []  # (number, gap) of gaps that no later one reaches

    def note_gap(self, gap_ns: int) -> None:
        """Every member saw this gap between two tokens."""
        peaks = self._peaks
        while peaks and peaks[-1][1] <= gap_ns:
            peaks.pop()
        peaks.append((self.n_gaps, gap_ns))
        self.n_gaps += 1

    def largest_gap_ns(self, since: int) -> int:
        """The largest gap from number ``since`` on, 0 if there is none."""
        index = bisect_left(self._peaks, (since,))
        return self._peaks[index][1] if index < len(self._peaks) else 0

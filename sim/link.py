"""The link between host memory and HBM: two directions, each first come first served.

While both are busy they share the joint bandwidth as a fluid: half each, and what one
cannot use goes to the other. Remaining work is counted in byte-nanoseconds (bytes times
``NS_PER_S``, of which a rate in bytes/s takes as many a nanosecond), so nothing is lost
to rounding but the last nanosecond of a copy.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from policies.types import NS_PER_S, LinkProfile

MILLION: Final = 10**6

MOST_ENDED: Final = 8
"""Copies that have ended and are not forgotten yet, alone in their direction: speed only."""


@dataclass(slots=True, init=False)
class Copy:
    """One copy under way, as far as is known now.

    A copy that is requested later for the other direction may still postpone
    ``start_ns`` and ``end_ns``, never bring them forward: read them when they are needed.
    """

    start_ns: int
    end_ns: int
    left: int
    """Byte-nanoseconds still to move at the link's clock."""

    def __init__(self, start_ns: int, end_ns: int, left: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.left = left


class Link:
    """Host-to-device and device-to-host copies in flight, and what they do to computation.

    Copies of one direction run in the order of the calls. Calls come in order of time,
    except that a caller may request copies ahead of time as long as nobody else does.

    Args:
        profile: bandwidth of each direction and of both together.
        slowdown_ppm: how much longer computation takes beside a copy in flight, in
            millionths. Measured on an H200: 0 over PCIe, 30,000 to 90,000 over NVLink.
        copy_slowdown_ppm: how much longer a copy takes beside computation, while no copy of the other
            direction is in flight. Over NVLink both want more of HBM than there is.
        prefill_slowdowns_ppm: both in steps with prompts (see ``compute``); ``None``: as in other steps.

    Attributes:
        may_slow: whether copies and the computation beside them make each other take longer.

    Raises:
        ValueError: a slowdown is negative.
    """

    def __init__(
        self,
        profile: LinkProfile,
        slowdown_ppm: int = 0,
        copy_slowdown_ppm: int = 0,
        prefill_slowdowns_ppm: tuple[int | None, int | None] = (None, None),
    ) -> None:
        compute_ppm, copies_ppm = prefill_slowdowns_ppm
        self._of_prefills = (
            slowdown_ppm if compute_ppm is None else compute_ppm,
            copy_slowdown_ppm if copies_ppm is None else copies_ppm,
        )
        self._of_others = (slowdown_ppm, copy_slowdown_ppm)
        for name, ppm in (
            ("slowdown_ppm", min(slowdown_ppm, self._of_prefills[0])),
            ("copy_slowdown_ppm", min(copy_slowdown_ppm, self._of_prefills[1])),
        ):
            if ppm < 0:
                raise ValueError(f"link: {name}={ppm} must be >= 0")
        self._profile = profile
        self.may_slow = max(*self._of_others, *self._of_prefills) > 0
        self._slowdown_ppm = slowdown_ppm
        self._copy_slowdown_ppm = copy_slowdown_ppm
        self._clock_ns = 0  # what is left of each copy is known at this moment
        self._h2d: deque[Copy] = deque()
        self._d2h: deque[Copy] = deque()

    @property
    def slows(self) -> bool:
        """Whether a copy that does so may be in flight."""
        return self.may_slow and bool(self._h2d or self._d2h)

    def compute(self, *, is_prefill: bool) -> None:
        """Say what kind of step computes from now on."""
        self._slowdown_ppm, self._copy_slowdown_ppm = self._of_prefills if is_prefill else self._of_others

    def h2d(self, n_bytes: int, at_ns: int) -> Copy:
        """Request a copy to the device."""
        return self._request(self._h2d, self._d2h, n_bytes, self._profile.h2d_bytes_per_s, at_ns)

    def d2h(self, n_bytes: int, at_ns: int) -> Copy:
        """Request a copy to the host."""
        return self._request(self._d2h, self._h2d, n_bytes, self._profile.d2h_bytes_per_s, at_ns)

    def compute_until(self, start_ns: int, work_ns: int) -> int:
        """End of a computation of ``work_ns`` that starts at ``start_ns``, slowed beside copies in flight.

        Those are slowed as well, and with them the ones that wait behind them.
        """
        if not self.may_slow:
            return start_ns + work_ns
        alone, beside = MILLION + self._slowdown_ppm, MILLION  # progress a nanosecond
        left, now_ns = work_ns * alone, start_ns
        for copy in sorted([*self._h2d, *self._d2h], key=lambda copy: copy.start_ns):
            if copy.start_ns > now_ns:
                progress = (copy.start_ns - now_ns) * alone
                if left <= progress:
                    break
                left, now_ns = left - progress, copy.start_ns
            if copy.end_ns > now_ns:
                self._slow_down(copy, now_ns, _ceil_div(left, beside))
                progress = (copy.end_ns - now_ns) * beside
                if left <= progress:
                    return now_ns + _ceil_div(left, beside)
                left, now_ns = left - progress, copy.end_ns
        return now_ns + _ceil_div(left, alone)

    def _slow_down(self, copy: Copy, now_ns: int, computing_ns: int) -> None:
        """Postpone the end of a copy beside which something computes for so long, and the copies behind it."""
        if not self._copy_slowdown_ppm or (self._h2d and self._d2h):
            return
        queue, rate = self._h2d, self._profile.h2d_bytes_per_s
        if not queue:
            queue, rate = self._d2h, self._profile.d2h_bytes_per_s
        slowed = MILLION + self._copy_slowdown_ppm
        whole_ns = _ceil_div((copy.end_ns - now_ns) * slowed, MILLION)
        if computing_ns < whole_ns:  # the rest of it goes on alone
            late_ns = computing_ns - computing_ns * MILLION // slowed
        else:
            late_ns = now_ns + whole_ns - copy.end_ns
        copy.end_ns += late_ns
        copy.left += late_ns * rate
        free_ns, is_behind = 0, False
        for each in queue:
            if is_behind and each.start_ns < free_ns:
                each.start_ns, each.end_ns = free_ns, each.end_ns + free_ns - each.start_ns
            is_behind = is_behind or each is copy
            free_ns = each.end_ns

    def _request(self, own: deque[Copy], other: deque[Copy], n_bytes: int, rate: int, at_ns: int) -> Copy:
        if other or len(own) > MOST_ENDED:
            self._forget(at_ns)
        start_ns = at_ns
        if own and (end_ns := own[-1].end_ns) > at_ns:
            start_ns = end_ns
        work = n_bytes * NS_PER_S
        copy = Copy(start_ns, start_ns - (-work // rate), work)
        own.append(copy)
        if other:
            self._foresee()
        return copy

    def _forget(self, before_ns: int) -> None:
        """Drop copies that have ended by then; those still under way remember what is left."""
        if self._h2d and self._d2h:
            self._flow(before_ns)
        for queue in (self._h2d, self._d2h):
            while queue and queue[0].end_ns <= before_ns:
                queue.popleft()

    def _foresee(self) -> None:
        """Work out start and end of every copy, if no other follows."""
        clock_ns = self._clock_ns
        left = [(copy, copy.left) for copy in (*self._h2d, *self._d2h)]
        self._flow(None)
        self._clock_ns = clock_ns
        for copy, work in left:
            copy.left = work

    def _flow(self, until_ns: int | None) -> None:
        """Let the copies run from the clock on until then, or to their ends."""
        h2d, d2h = deque(self._h2d), deque(self._d2h)
        now_ns = self._clock_ns
        while (h2d or d2h) and (until_ns is None or now_ns < until_ns):
            waiting = [queue[0].start_ns for queue in (h2d, d2h) if queue and queue[0].start_ns > now_ns]
            moving = [queue for queue in (h2d, d2h) if queue and queue[0].start_ns <= now_ns]
            rates = [self._rate(queue is h2d, alone=len(moving) == 1) for queue in moving]
            ends = [now_ns + _ceil_div(queue[0].left, rate) for queue, rate in zip(moving, rates, strict=True)]
            then_ns = min([*waiting, *ends] if until_ns is None else [*waiting, *ends, until_ns])
            for queue, rate in zip(moving, rates, strict=True):
                copy = queue[0]
                copy.left = max(0, copy.left - (then_ns - now_ns) * rate)
                if not copy.left:
                    copy.end_ns = then_ns
                    queue.popleft()
                    if queue:
                        queue[0].start_ns = max(queue[0].start_ns, then_ns)
            now_ns = then_ns
        self._clock_ns = now_ns if until_ns is None else max(now_ns, until_ns)

    def _rate(self, is_h2d: bool, *, alone: bool) -> int:
        """Bytes/s of one direction: its own limit alone, its fair part of the joint bandwidth otherwise."""
        own, other = self._profile.h2d_bytes_per_s, self._profile.d2h_bytes_per_s
        if not is_h2d:
            own, other = other, own
        if alone:
            return own
        joint = self._profile.joint_bytes_per_s
        return min(own, max(joint // 2, joint - other))


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)

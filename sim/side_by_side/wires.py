"""The host link of several lanes at once: each has a queue for each direction, and their heads share the link.

Within a lane copies of one direction go one after the other, as in one stream; the lanes that copy in one
direction have equal parts of its bandwidth. While both directions are busy they share the joint bandwidth as in
``sim/link.py``. What is left of a copy is counted in byte-nanoseconds, as there.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from policies.types import NS_PER_S, LinkProfile
from sim.link import MILLION, Copy
from traces.results.copies import NEVER

H2D: Final = 0
D2H: Final = 1


class Wires:
    """Copies in flight; their ends become known as they come.

    Args:
        profile: bandwidth of each direction and of both together.
        copy_slowdown_ppm: how much longer a copy takes beside computation, while no copy of the other direction moves.
    """

    def __init__(self, profile: LinkProfile, n_lanes: int, copy_slowdown_ppm: int = 0) -> None:
        self._rates = profile.h2d_bytes_per_s, profile.d2h_bytes_per_s
        self._joint = profile.joint_bytes_per_s
        self._slowed = MILLION + copy_slowdown_ppm
        self._queues: tuple[list[deque[Copy]], list[deque[Copy]]] = (
            [deque() for _ in range(n_lanes)],
            [deque() for _ in range(n_lanes)],
        )
        self._n_moving = [0, 0]  # lanes with a copy, by direction

    @property
    def is_busy(self) -> bool:
        """Whether anything moves."""
        return bool(self._n_moving[H2D] or self._n_moving[D2H])

    def request(self, lane: int, way: int, n_bytes: int, now_ns: int) -> Copy:
        """Queue a copy; it starts at once if the lane's queue is empty."""
        queue = self._queues[way][lane]
        copy = Copy(NEVER, NEVER, n_bytes * NS_PER_S)
        if not queue:
            copy.start_ns = now_ns
            self._n_moving[way] += 1
        queue.append(copy)
        return copy

    def rates(self, *, beside_computation: bool) -> tuple[int, int]:
        """Bytes/s of each copy that moves to the device, and to the host."""
        n_to_device, n_to_host = self._n_moving
        h2d, d2h = self._rates
        if n_to_device and n_to_host:
            half = self._joint // 2
            h2d, d2h = min(h2d, max(half, self._joint - d2h)), min(d2h, max(half, self._joint - h2d))
        elif beside_computation:
            h2d, d2h = h2d * MILLION // self._slowed, d2h * MILLION // self._slowed
        return max(1, h2d // (n_to_device or 1)), max(1, d2h // (n_to_host or 1))

    def next_end_ns(self, now_ns: int, rates: tuple[int, int]) -> int:
        """When the first of them ends if nothing changes."""
        end_ns = NEVER
        for way in (H2D, D2H):
            if self._n_moving[way]:
                least = min([queue[0].left for queue in self._queues[way] if queue])
                end_ns = min(end_ns, now_ns - (-least // rates[way]))
        return end_ns

    def move(self, from_ns: int, until_ns: int, rates: tuple[int, int]) -> None:
        """Let them run; those that are done leave their queues, and the next ones start."""
        for way in (H2D, D2H):
            if not self._n_moving[way]:
                continue
            moved = rates[way] * (until_ns - from_ns)
            for queue in self._queues[way]:
                if queue:
                    self._move_first(queue, way, moved, until_ns)

    def _move_first(self, queue: deque[Copy], way: int, moved: int, now_ns: int) -> None:
        copy = queue[0]
        copy.left -= moved
        if copy.left > 0:
            return
        copy.left, copy.end_ns = 0, now_ns
        queue.popleft()
        if queue:
            queue[0].start_ns = now_ns
        else:
            self._n_moving[way] -= 1

"""Steps of one lane that have been submitted: they start one behind the other and are reported as they end."""

from __future__ import annotations

from collections import deque

from policies.backend import Batch, StepReport


class UnderWay:
    """A queue of reports whose time has not come.

    With steps launched ahead, a submission of several goes as all but the last and the last: when the first
    part ends, the next step is composed.
    """

    def __init__(self) -> None:
        self._reports: deque[StepReport] = deque()
        self._n_steps = 0
        self._n_ahead = 0

    def __bool__(self) -> bool:
        return bool(self._reports)

    @property
    def next_end_ns(self) -> int | None:
        """When the next report is due, ``None`` if nothing is under way."""
        return self._reports[0].ends_ns[-1] if self._reports else None

    def begin(self, lane: int, batch: Batch, n_steps: int, n_ahead: int, now_ns: int) -> int:
        """Find out when a submission may start: now, or at the end of what is under way.

        Raises:
            ValueError: the lane is busy, or a batch with prefill tokens would repeat.
        """
        if self._n_steps > n_ahead:
            raise ValueError(f"lane {lane} is busy; take its report first")
        if n_steps > 1 and batch.work.n_prefill_tokens:
            raise ValueError(f"lane {lane}: a batch with prefill tokens cannot repeat")
        self._n_ahead = n_ahead
        return self._reports[-1].ends_ns[-1] if self._reports else now_ns

    def goes_on(self, start_ns: int, ends_ns: list[int], stop_ns: int) -> bool:
        """Whether another step is launched behind those of a submission that end at ``ends_ns``.

        That is decided at the end of the last one, or with steps launched ahead at that of an earlier one.
        """
        n_seen = len(ends_ns) - self._n_ahead
        return (ends_ns[n_seen - 1] if n_seen > 0 else start_ns) < stop_ns

    def put(self, report: StepReport) -> None:
        """Queue a submission."""
        n_steps = len(report.ends_ns)
        n_first = max(1, n_steps - self._n_ahead)
        self._reports.append(report.part(0, n_first))
        if n_first < n_steps:
            self._reports.append(report.part(n_first, n_steps))
        self._n_steps += n_steps

    def take(self, until_ns: int | None) -> StepReport | None:
        """Take the next report if its last step has ended by then (``None``: whenever that is).

        Raises:
            ValueError: nothing is in flight and no time is given.
        """
        if self._reports and (until_ns is None or self._reports[0].ends_ns[-1] <= until_ns):
            report = self._reports.popleft()
            self._n_steps -= len(report.ends_ns)
            report.n_under_way = min(self._n_ahead + 1, self._n_steps)
            return report
        if until_ns is None:
            raise ValueError("nothing is in flight; name a time to advance to")
        return None

"""Which turn of which session each request of a run was, and when it happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from policies.types import NS_PER_S
from traces.sessions.settings import SessionSettings

if TYPE_CHECKING:
    import numpy.typing as npt

    from traces.results.folder import RunTables
    from traces.results.tables import Columns

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_COLUMNS = (
    "request_id",
    "arrival_ns",
    "scheduled_ns",
    "first_token_ns",
    "finish_ns",
    "outcome",
    "n_prompt_tokens",
    "n_output_tokens",
    "n_preemptions",
    "n_first_hit_tokens",
    "mean_gap_ns",
)


@dataclass(frozen=True, slots=True)
class Turns:
    """The finished turns of a run, in order of their finish.

    Attributes:
        columns: of ``requests``, each (n,).
        number: (n,) of each turn in its session, from 0.
        is_last: (n,) whether its session ends with it.
        n_recorded: turns of all sessions that there are; ``None``: they are without end.
    """

    settings: SessionSettings
    columns: Columns
    number: Ints
    is_last: Flags
    n_recorded: int | None

    def chosen(self, which: Flags) -> Columns:
        """Columns of some of them."""
        return {name: column[which] for name, column in self.columns.items()}

    def measured(self) -> Flags:
        """(n,) the turns that figures are of: see ``SessionSettings.measured``."""
        match self.settings.measured:
            case "without_first_turn":
                return self.number > 0
            case "replay":
                begin_ns, end_ns = self.window_ns()
                spoke_ns = self.columns["first_token_ns"]
                return (spoke_ns >= begin_ns) & (spoke_ns < end_ns)
            case _:
                return np.ones(len(self.number), dtype=np.bool_)

    def window_ns(self) -> tuple[int, int]:
        """From when to when figures are taken; of a replay where it is warm and complete, else all of the run."""
        finish_ns = self.columns["finish_ns"]
        if not len(finish_ns):
            return 0, 0
        if self.settings.measured == "replay" and len(finish_ns) > self.settings.warm_up_turns:
            started_ns = self.columns["scheduled_ns"][self.number == 0].max()
            ends_ns = finish_ns[self.is_last & (finish_ns > started_ns)]
            return int(finish_ns[self.settings.warm_up_turns - 1]), int(ends_ns.min(initial=finish_ns[-1]))
        window_s = self.settings.window_s
        return 0, int(finish_ns[-1]) if window_s is None else round(window_s * NS_PER_S)


def sessions_of(config: Mapping[str, object]) -> SessionSettings | None:
    """The sessions that a run's configuration names, ``None`` if it served requests by themselves."""
    named = cast("Mapping[str, Mapping[str, Any]]", config.get("sessions") or {})
    return next((SessionSettings(**values) for values in named.values()), None)


def turns_of(run: RunTables, settings: SessionSettings) -> Turns:
    """Find out which turns finished in a run of these sessions, which are made or read again for it."""
    columns = run.columns("requests", _COLUMNS)
    finished = columns["outcome"] == "finished"
    order = np.argsort(columns["finish_ns"][finished], kind="stable")
    done = {name: column[finished][order] for name, column in columns.items()}
    largest = int(columns["request_id"].max(initial=0))
    first_ids, n_turns = _layout(settings, run.info.seed, largest)
    request_ids: Ints = done["request_id"]
    session: Ints = np.searchsorted(first_ids, request_ids, side="right") - 1
    number = request_ids - first_ids[session]
    n_recorded = None if settings.n_sessions is None and settings.kind != "file" else int(n_turns.sum())
    return Turns(settings, done, number, number == n_turns[session] - 1, n_recorded)


def _layout(settings: SessionSettings, seed: int, largest: int) -> tuple[Ints, Ints]:
    """First request id and turns of each session; of sessions without end, of those that have a request."""
    is_endless = settings.n_sessions is None and settings.kind != "file"
    firsts, n_turns = [0], list[int]()
    for session in settings.sessions(seed):
        if is_endless and firsts[-1] > largest:
            break
        n_turns.append(len(session.turns))
        firsts.append(firsts[-1] + n_turns[-1])
    return np.array(firsts[:-1], dtype=np.int64), np.array(n_turns, dtype=np.int64)

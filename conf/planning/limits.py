"""What binds: each resource made better by the same share; and from which link speed on lending pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from conf.parallel import Parallel, side_by_side
from conf.planning.interval import Interval, interval
from conf.planning.probe import Point, Search, highest_rate, watched
from conf.planning.search import Bracket, Ladder
from conf.planning.slo import Slo
from conf.planning.streams import Traffic
from conf.planning.systems import Configuration, System
from policies.setup import open_ledger

MORE = 1.25
"""By which each resource is made better to see what it would give."""

MOST_SEEDS = 3
"""Under which they are compared: enough to tell a resource that binds from one that does not."""

MARGIN = 1.03
"""Over the rate without lending, at which lending must keep the promise to pay."""

FASTEST = 64.0
"""Times the link's speed: above a terabyte a second from any PCIe on, as good as free."""

LINK_PRECISION = 1.2
"""Factor within which the speed is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """What a quarter more of one resource gives.

    Attributes:
        resource: ``memory``: of KV cache; ``HBM``: its bandwidth; ``computation``; ``link``; ``host``: its speed.
        gain: in the rate up to which the promise is kept, as a share.
    """

    resource: str
    gain: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAnswer:
    """From which link speed on lending pays, everything else as it is.

    Attributes:
        bytes_per_s: host to device; ``None``: at no speed.
        now_bytes_per_s: of the machine.
        system: that pays at that speed.
    """

    bytes_per_s: float | None
    now_bytes_per_s: int
    system: System | None


def reliefs(
    configuration: Configuration,
    traffic: Traffic,
    system: System,
    brackets: Sequence[Bracket],
    ladder: Ladder,
    slo: Slo,
    how: Parallel,
) -> tuple[Relief, ...]:
    """Search once more with each resource better, under the first ``MOST_SEEDS``; the largest gain first."""
    changes = _better(configuration, system)
    before = list(brackets[:MOST_SEEDS])
    if not all(bracket.low > 0 and bracket.high < inf for bracket in before):
        return ()
    searches = [
        Search(
            run=configuration.run(system, traffic, changed), stream=stream, slo=slo, ladder=ladder, guess=bracket.high
        )
        for changed in changes.values()
        for stream, bracket in zip(traffic.streams, before, strict=False)
    ]
    found = iter([each.bracket for each in side_by_side(highest_rate, searches, how)])
    gains = [
        Relief(resource=resource, gain=interval([next(found).middle / each.middle - 1 for each in before]))
        for resource in changes
    ]
    return tuple(sorted(gains, key=lambda relief: -relief.gain.mean))


def _better(configuration: Configuration, system: System) -> dict[str, Mapping[str, object]]:
    """Changes that make each resource better by ``MORE``."""
    run = configuration.run(system)
    hardware: Any = run.settings.hardware
    kv_pages = sum(part.kv_pages for part in open_ledger(run.models, run.hardware).partitions)
    share = sum(model.share for model in run.models)
    more_kv = round((MORE - 1) * kv_pages * hardware.page_bytes / share)
    changes: dict[str, Mapping[str, object]] = {
        "memory": {"hardware.hbm_bytes": hardware.hbm_bytes + more_kv},
        "HBM": {"hardware.hbm_bytes_per_s": round(hardware.hbm_bytes_per_s * MORE)},
        "computation": {"hardware.flops_per_s": round(hardware.flops_per_s * MORE)},
        "host": {"hardware.roofline.host_scale": hardware.roofline.host_scale / MORE},
    }
    if system.lends or run.policy.preemption == "swap":  # others copy nothing
        changes["link"] = _link(hardware, MORE)
    return changes


def _link(hardware: Any, factor: float) -> dict[str, object]:
    names = ("h2d_bytes_per_s", "d2h_bytes_per_s", "joint_bytes_per_s")
    return {f"hardware.link.{name}": round(getattr(hardware.link, name) * factor) for name in names}


def link_that_pays(
    configuration: Configuration,
    traffic: Traffic,
    lenders: Sequence[System],
    reference: Sequence[Bracket],
    slo: Slo,
    how: Parallel,
    *,
    pays_now: bool,
) -> LinkAnswer:
    """Find the lowest link speed at which one of the lenders pays.

    It pays at a speed if it keeps the promise, for more than half of the seeds, at a rate ``MARGIN`` above the
    reference's. Higher speeds are tried if it does not pay now, lower ones if it does.
    """
    hardware = configuration.run(lenders[0]).settings.hardware
    now = hardware.link.h2d_bytes_per_s

    def payer(factor: float) -> System | None:
        changed = _link(hardware, factor)
        for system in lenders:
            run = configuration.run(system, traffic, changed)
            points = [
                Point(run=run, stream=stream, slo=slo, rate_per_s=bracket.high * MARGIN)
                for stream, bracket in zip(traffic.streams, reference, strict=True)
            ]
            if sum(side_by_side(_kept, points, how)) * 2 > len(points):
                return system
        return None

    if any(bracket.high == inf for bracket in reference):
        return LinkAnswer(bytes_per_s=None, now_bytes_per_s=now, system=None)
    slow, fast = (1 / FASTEST, 1.0) if pays_now else (1.0, FASTEST)
    found = payer(fast)
    if found is None:
        return LinkAnswer(bytes_per_s=None, now_bytes_per_s=now, system=None)
    while fast > slow * LINK_PRECISION:
        middle = sqrt(slow * fast)
        better = payer(middle)
        if better is None:
            slow = middle
        else:
            fast, found = middle, better
    return LinkAnswer(bytes_per_s=now * fast, now_bytes_per_s=now, system=found)


def _kept(point: Point) -> bool:
    return watched(point.run, point.stream, point.slo, point.rate_per_s).is_kept

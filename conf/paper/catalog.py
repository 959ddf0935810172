"""The claims of the papers as data: what each says, which experiment answers it, and how ours is read from that.

``conf/claims/<paper>.yaml``, an entry a claim::

    M011:
      text: P99 TBT, C1                     # in a few words
      source: section 7.2, figure 8(a)
      check: e2e                            # e2e, e2e-range, ablation, micro, arithmetic, config
      paper: {reduction: 54.4}              # percent; or increase; value; factor; [LEAST, GREATEST] of any but factor
      experiments: [mirage/fig8_c1]         # of conf/experiment
      ours: {change: [mean_gap_p99], of: mirage, against: recompute}
      assumes: what the paper leaves open

How ours is read, one of:

- ``change``: relative change of a figure of merit of one system against another, over the points (workload, rate,
  seed) that both ran; the first metric is scored, the others are printed beside it. ``over``: ``mean`` (the default),
  ``max`` or ``min``: the largest or smallest change in the direction of the claim. ``where`` keeps points whose
  lengths, mix or rate have these values.
- ``column``: of a table that the experiment leaves (``file``: ``sessions``, the default, ``turns``, ``progress``,
  ``bins`` or ``experts``), of a system (``of``; also several, or all if it is left out), where columns have values
  (``where``; two values: from the first to the last), averaged over seeds, then ``over`` points. Against a value: the
  mean. Against ``value: [LEAST, GREATEST]``: least and greatest of the points. ``against``: a change or a factor over
  another system, or the two values of ``pair: [OF_AGAINST, OF]``, whose direction is which of them is more.
- ``number``: a number that the experiment's figure gave (``numbers.json``).
- ``holds``: ``"a < b < c"``, several of them joined by ``and``, of such numbers, plain ones, or cells of sessions.csv
  (``SYSTEM.COLUMN``, ``SYSTEM.COLUMN[KEY=VALUE]``): an ordering.
- ``range_of``: least and greatest of what other claims came to.
- ``same_as``: another claim; it counts once.

An entry without ``ours`` is unscored. ``refuted`` names a file that shows that the claim holds under none of the
assumptions, and says why; ``open`` one that shows that it depends on them (see ``conf/paper/score.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any, Literal, cast, get_args

from conf.paper.cells import FILES
from traces.claims import METRICS, Claim

Check = Literal["e2e", "e2e-range", "ablation", "micro", "arithmetic", "config"]
Kind = Literal["reduction", "increase", "value", "pair", "factor", "ordering"]

CHECKS: tuple[Check, ...] = get_args(Check)
WAYS = ("change", "column", "number", "holds", "range_of", "same_as")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How our number is read; exactly one of ``WAYS`` is given.

    Raises:
        ValueError: none or several of the ways, an unknown metric, or a change without its two systems.
    """

    change: tuple[str, ...] = ()
    column: str | None = None
    file: str = "sessions"
    of: str | tuple[str, ...] | None = None
    against: str | None = None
    over: Literal["mean", "max", "min"] = "mean"
    where: Mapping[str, object] = field(default_factory=dict[str, object])
    number: str | None = None
    holds: str | None = None
    range_of: tuple[str, ...] = ()
    same_as: str | None = None

    def __post_init__(self) -> None:
        given = [way for way in WAYS if getattr(self, way)]
        if len(given) != 1:
            raise ValueError(f"ours gives {', '.join(given) or 'nothing'}; give one of {', '.join(WAYS)}")
        if unknown := [name for name in self.change if name not in METRICS]:
            raise ValueError(f"ours.change: {unknown[0]} is unknown; take from {', '.join(METRICS)}")
        if self.change and not (self.of and self.against):
            raise ValueError("ours.change needs of: SYSTEM and against: BASELINE")
        if self.file not in FILES:
            raise ValueError(f"ours.file={self.file} must be one of {', '.join(FILES)}")
        if self.over not in ("mean", "max", "min"):
            raise ValueError(f"ours.over={self.over} must be mean, max or min")

    @property
    def systems(self) -> tuple[str, ...]:
        """Whose cells a column is read from; none: those of all."""
        return (self.of,) if isinstance(self.of, str) else self.of or ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why a claim does not hold, or not always, and the file that shows it, below the repository."""

    because: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One claim.

    Attributes:
        kind, values: what the paper says; two values for a range or a pair, none for an ordering.
        unit: of the values.
        ours: ``None``: nothing answers it yet.

    Raises:
        ValueError: a pair, or a column for a change, without the system that it is against.
    """

    id: str
    paper: str
    text: str
    source: str
    check: Check
    kind: Kind
    values: tuple[float, ...]
    unit: str = "%"
    experiments: tuple[str, ...] = ()
    ours: Reading | None = None
    assumes: str = ""
    refuted: Evidence | None = None
    open: Evidence | None = None

    def __post_init__(self) -> None:
        compares = self.kind == "pair" or self.is_relative
        if compares and self.ours is not None and self.ours.column and not self.ours.against:
            raise ValueError(f"ours.column for {self.kind} needs against: BASELINE")

    @property
    def is_relative(self) -> bool:
        """Whether the values are percent by which something is less or more."""
        return self.kind in ("reduction", "increase")

    @property
    def changes(self) -> tuple[float, ...]:
        """The values of a relative claim as signed shares."""
        return tuple(value / 100 * (-1 if self.kind == "reduction" else 1) for value in self.values)

    def as_claim(self, mix: str) -> Claim:
        """The claim as the report of a run prints it."""
        assert self.ours is not None
        assert isinstance(self.ours.of, str)
        assert self.ours.against is not None
        return Claim(
            id=self.id,
            text=self.text,
            source=self.source,
            mix=mix,
            baseline=self.ours.against,
            system=self.ours.of,
            kind="reduction" if self.kind == "reduction" else "increase",
            value_percent=self.values[0],
            metrics=self.ours.change,
        )


def read_catalog(*papers: str) -> tuple[Entry, ...]:
    """Read the claims of papers, by the names of their files.

    Raises:
        ValueError: an entry is faulty, or there is no such paper.
    """
    return tuple(entry for paper in papers for entry in _entries(paper))


def papers() -> tuple[str, ...]:
    """Which papers there are."""
    found = [path.name for path in (files("conf") / "claims").iterdir() if path.name.endswith(".yaml")]
    return tuple(sorted(name.removesuffix(".yaml") for name in found))


def _entries(paper: str) -> list[Entry]:
    import yaml

    if paper not in papers():
        raise ValueError(f"no claims of {paper}; there are {', '.join(papers())}")
    text = (files("conf") / "claims" / f"{paper}.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C if there is one: 0.08 s less at the end of every run
    entries = cast("Mapping[str, Mapping[str, Any]]", yaml.load(text, loader))
    return [entry_from(name, paper, given) for name, given in entries.items()]


def entry_from(name: str, paper: str, given: Mapping[str, Any]) -> Entry:
    """Make an entry of what YAML gives.

    Raises:
        ValueError: with the claim and its mistake.
    """
    try:
        known = {item.name for item in fields(Entry)} - {"id", "kind", "values"}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"no key {unknown[0]}; there are {', '.join(sorted(known))}")
        kind, values = _said(given.get("paper", "ordering"))
        ours = given.get("ours")
        return Entry(
            id=name,
            paper=paper,
            text=given["text"],
            source=given["source"],
            check=given["check"],
            kind=kind,
            values=values,
            unit=given.get("unit", "%" if kind in ("reduction", "increase") else ""),
            experiments=tuple(given.get("experiments", ())),
            ours=None if ours is None else Reading(**_tuples(ours)),
            assumes=given.get("assumes", ""),
            refuted=_evidence(given.get("refuted")),
            open=_evidence(given.get("open")),
        )
    except KeyError as missing:
        raise ValueError(f"claim {name}: {missing.args[0]} is missing") from None
    except (TypeError, ValueError) as mistake:
        raise ValueError(f"claim {name}: {mistake}") from None


def _said(paper: object) -> tuple[Kind, tuple[float, ...]]:
    """Kind and values of what the paper says: ``ordering``, or one kind with its value."""
    if paper == "ordering":
        return "ordering", ()
    given = cast("Mapping[str, Any]", paper if isinstance(paper, Mapping) else {})
    if len(given) != 1:
        raise ValueError("paper must be `ordering`, or one of reduction, increase, value, pair, factor with its value")
    ((kind, value),) = given.items()
    values = tuple(map(float, cast("list[Any]", value) if isinstance(value, list) else [value]))
    if kind == "ordering" or kind not in get_args(Kind) or len(values) not in ((2,) if kind == "pair" else (1, 2)):
        raise ValueError(f"paper: {kind}={value} is not a kind of claim with its value")
    return cast("Kind", kind), values


def _evidence(given: Mapping[str, str] | None) -> Evidence | None:
    return None if given is None else Evidence(**given)


def _tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(cast("list[Any]", value)) if isinstance(value, list) else value for key, value in given.items()}

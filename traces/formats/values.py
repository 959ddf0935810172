"""Numbers and points in time as trace files write them, exact to the nanosecond, or refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

from policies.types import NS_PER_S
from traces.formats.lines import quoted

MAX_TOKENS = 2**31 - 1
"""Above it a number is no token count: the column types of such files are 32-bit."""

MAX_NS = 2**62
"""A century and a half; sums of two such times still fit 64 bits."""

UNITS_NS = {"s": NS_PER_S, "ms": 10**6, "us": 10**3, "ns": 1}

EPOCH_S = (10**9, 4 * 10**9)
"""2001 to 2096 in seconds since 1970: a first time of that many units is a date in this unit."""

_AS_FORMAT = "as the format has it"
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z| UTC|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{0,40})?(?:[eE][+-]?\d{1,2})?", re.ASCII)


def tokens(value: object, name: str) -> int:
    """Read a token count: a whole number however it is written, also as a string, as ``12.0`` or as ``1e3``.

    Raises:
        ValueError: it is something else, negative, or above ``MAX_TOKENS``.
    """
    if type(value) is int:
        number = value
    elif isinstance(value, str) and len(value) < 10 and value.isascii() and value.isdigit():
        return int(value)  # nearly all of them
    else:
        text = str(value).strip()
        if len(text) > 40 and text.isascii() and text.isdigit():
            raise ValueError(f"{name} {quoted(text)} is above {MAX_TOKENS} tokens")
        exact = None if isinstance(value, bool) else _number(text)
        if exact is None or exact != (number := int(exact)):
            raise ValueError(f"{name} {quoted(text)} is not a whole number")
    if number < 0:
        raise ValueError(f"{name} {number} is negative")
    if number > MAX_TOKENS:
        raise ValueError(f"{name} '{number}' is above {MAX_TOKENS} tokens")
    return number


def is_value(text: str) -> bool:
    """Whether a text is a number or a date."""
    return _NUMBER.fullmatch(text) is not None or _STAMP.fullmatch(text) is not None


def duration_ns(value: object, unit: str, name: str) -> int:
    """Read how long something took, in ns, rounded.

    Raises:
        ValueError: it is no finite number, negative, or longer than ``MAX_NS``.
    """
    number = _number(value)
    if number is None:
        raise ValueError(f"{name} {quoted(str(value))} is not a number of {unit}")
    if number < 0:
        raise ValueError(f"{name} {quoted(str(value))} is negative")
    return _rounded(number * UNITS_NS[unit], value, name)


class Clock:
    """Reads the points in time of one file: dates, or numbers in a unit that holds for all of them.

    The unit is, in this order: what the user says; what the first number shows if it is
    a date in s, ms, us or ns since 1970 (unless a column names its unit); the unit of the
    format. A date without a zone is UTC. Dates and numbers stand side by side only where the numbers are dates, too.

    Attributes:
        unit: of the numbers; ``None`` as long as there was none.
        why: where the unit is from.
        spellings: how many dates have which (digits of the fraction, zone).
        is_other: the last date is spelled differently from the first.
    """

    def __init__(self, of_format: str | None = None, chosen: str | None = None, *, is_named: bool = False) -> None:
        self._of_format = of_format
        self._chosen = chosen
        self._is_named = is_named
        self.unit: str | None = None
        self.why = "dates"
        self.spellings: dict[tuple[int, str], int] = {}
        self.is_other = False
        self._is_epoch = False

    @property
    def is_assumed(self) -> bool:
        """The unit is the format's, and nothing in the file says so."""
        return self.unit is not None and self.why == _AS_FORMAT

    def ns(self, value: object, name: str) -> int:
        """Read a point in time, in ns since whatever the file counts from.

        Raises:
            ValueError: it is neither a date nor a number with a known unit, or before the start.
        """
        if type(value) is not int:
            if isinstance(value, str):
                value = value.strip()
                date = _STAMP.fullmatch(value)
                if date is not None:
                    return self._date_ns(value, date, name)
            number = _number(value)
        else:
            number = value
        if number is None:
            raise ValueError(f"{name} {quoted(str(value))} is not like 2023-11-16 18:17:03.9799600 and not a number")
        if number < 0:
            raise ValueError(f"{name} {quoted(str(value))} is before 0")
        if self.unit is None:
            self._choose(number, name, value)
            assert self.unit is not None  # else refused
        if self.spellings and not self._is_epoch:
            raise ValueError(f"{name} {quoted(str(value))} is a number of {self.unit} among dates")
        return _rounded(number * UNITS_NS[self.unit], value, name)

    def _date_ns(self, text: str, date: re.Match[str], name: str) -> int:
        if self.unit is not None and not self._is_epoch:
            raise ValueError(f"{name} {quoted(text)} is a date among numbers of {self.unit}")
        time_ns = _date_ns(text, date, name)
        if abs(time_ns) > MAX_NS:
            raise ValueError(f"{name} {quoted(text)} is not within {MAX_NS} ns of 1970")
        spelling = len(date[2] or ""), date[3] or ""
        self.spellings[spelling] = self.spellings.get(spelling, 0) + 1
        self.is_other = spelling != next(iter(self.spellings))
        return time_ns

    def _choose(self, first: Decimal | int, name: str, value: object) -> None:
        since_epoch = [u for u, ns in UNITS_NS.items() if EPOCH_S[0] <= first * ns / NS_PER_S < EPOCH_S[1]]
        if self._chosen is not None:
            self.unit, self.why = self._chosen, "as asked for"
        elif since_epoch and not self._is_named:
            self.unit, self.why = since_epoch[0], "the first is a date since 1970 in this unit"
        elif self._of_format is not None:
            self.unit, self.why = self._of_format, "the column names it" if self._is_named else _AS_FORMAT
        else:
            raise ValueError(
                f"{name} {quoted(str(value))} is not like 2023-11-16 18:17:03.9799600, and a number of unknown unit"
            )
        self._is_epoch = self.unit in since_epoch and not self._is_named


def _date_ns(text: str, date: re.Match[str], name: str) -> int:
    """Nanoseconds since 1970, exact: ``strptime`` and floats keep only six digits."""
    second, fraction, offset = date.groups()
    zone = offset if offset not in (None, "Z", " UTC") else "+00:00"
    try:
        since = datetime.fromisoformat(second + zone) - _EPOCH
    except ValueError:
        raise ValueError(f"{name} {quoted(text)} is no date and time") from None
    return (since.days * 86_400 + since.seconds) * NS_PER_S + int((fraction or "").ljust(9, "0"))


def _number(value: object) -> Decimal | int | None:
    """A finite number, also as a string; ``None`` for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = str(value)
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _rounded(exact_ns: Decimal | int, value: object, name: str) -> int:
    if exact_ns > MAX_NS:
        raise ValueError(f"{name} {quoted(str(value))} is later than {MAX_NS} ns")
    return round(exact_ns)

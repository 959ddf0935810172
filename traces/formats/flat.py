"""Reads formats that have one request a record, by their layout.

Rules, all of them counted by ``python -m traces inspect``:

- A token count is a whole number of 0 or more; as a string, with a fraction of zero, an exponent or blanks around it
  it is read as that number. Anything else (empty, NaN, negative, ``true``, ``1,000``) is a fault of the row.
- Columns are found by name, wherever they stand. One of unknown meaning is left out.
- A hash list names the prompt's blocks from the front. Ids beyond the prompt are left out; tokens beyond the ids have
  contents that nobody shares. Ids are compared as they are written: 64-bit numbers do not collide.
- A turn with a delay and no time carries only what it adds: its prompt is the prompt and the answer of the turn before
  it in its session, then its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import cast

from traces.formats.layout import Layout
from traces.formats.lines import quoted
from traces.formats.records import Record
from traces.formats.row import Entry, Pieces
from traces.formats.values import Clock, duration_ns, tokens

ID_BLOCK_TOKENS = 16
"""Token ids are told apart in blocks as small as the smallest that a server has."""

_NO_PARENT = ("-1", "", "None")


class FlatReader:
    """Makes entries of the records of one file; what it remembers are a few numbers a session."""

    def __init__(self, layout: Layout, clock: Clock, *, is_text: bool) -> None:
        self._layout = layout
        self._clock = clock
        self._is_text = is_text
        self._before: dict[str, Entry] = {}
        self._waits_ns: dict[str, int] = {}
        self._roots: dict[str, str] = {}
        self._known = layout.known

    def entries(self, line: int, record: Record) -> Iterator[Entry]:
        """Read one record.

        Raises:
            ValueError: what is wrong with it.
        """
        layout = self._layout
        odd: list[str] = [] if self._known >= record.keys() else ["unknown_column"]
        session = self._session(record)
        n_output = self._tokens(record, layout.output, odd)
        time_ns = self._time(record, layout.time)
        if self._clock.is_other:
            odd.append("mixed_dates")
        elif not self._is_text and self._clock.unit is not None and isinstance(record.get(layout.time or ""), str):
            odd.append("time_as_string")
        think_ns = self._think(record, session)
        n_new, pieces = self._prompt(line, record, odd)
        if layout.time is not None and time_ns is None:
            if not layout.may_lack_time and (think_ns is None or session is None):
                raise ValueError(f"{layout.time} is missing")
            before = self._before.get(session) if session is not None else None
            if layout.has_increments and before is not None:
                odd.append("turn_of_increments")
                n_new, pieces = _appended(before, n_new, pieces)
        entry = Entry(
            line=line,
            time_ns=time_ns,
            n_prompt=n_new,
            n_output=n_output,
            prompt=pieces,
            session=session,
            think_ns=think_ns,
            end_ns=self._time(record, layout.end),
            is_error=str(record.get(layout.error or "", "")).lower() in ("true", "1"),
            passages=_passages(record.get(layout.passages)) if layout.passages is not None else (),
            odd=tuple(odd),
        )
        if session is not None and layout.has_increments:
            self._before[session] = entry
        yield entry

    def _tokens(self, record: Record, column: str | None, odd: list[str]) -> int:
        assert column is not None  # a layout without a prompt column has pieces
        if column not in record or record[column] is None:
            raise ValueError(f"{column} is missing")
        value = record[column]
        if not self._is_text and isinstance(value, str):
            odd.append("count_as_string")
        if type(value) is not int and not str(value).isdecimal():
            odd.append("count_spelled")
        return tokens(value, column)

    def _prompt(self, line: int, record: Record, odd: list[str]) -> tuple[int, Pieces | None]:
        layout = self._layout
        written = record.get(layout.pieces or "")
        if layout.prompt is None:
            pieces = _written(written)
            return sum(n for _, n in pieces), pieces
        n_prompt = self._tokens(record, layout.prompt, odd)
        if layout.before_prompt is not None:
            n_prompt += self._tokens(record, layout.before_prompt, odd)
        if written not in (None, ""):
            pieces = _written(written)
            if sum(n for _, n in pieces) != n_prompt:
                raise ValueError(f"the pieces of {layout.pieces} do not add up to {n_prompt} tokens")
            return n_prompt, pieces
        if layout.ids is not None and layout.ids in record:
            return n_prompt, _of_ids(line, record[layout.ids], n_prompt, odd)
        if layout.hashes is not None:
            if record.get(layout.hashes) is None:
                return n_prompt, None
            return n_prompt, _of_hashes(line, record[layout.hashes], n_prompt, layout.block_tokens, odd)
        return n_prompt, None

    def _time(self, record: Record, column: str | None) -> int | None:
        value = record.get(column) if column is not None else None
        return None if value is None or value == "" else self._clock.ns(value, str(column))

    def _think(self, record: Record, session: str | None) -> int | None:
        layout = self._layout
        if layout.wait_after is not None and session is not None:
            think_ns = self._waits_ns.get(session)
            after = record.get(layout.wait_after)
            if after is not None and after != "":
                self._waits_ns[session] = duration_ns(after, layout.think_unit, layout.wait_after)
            return think_ns
        value = record.get(layout.think) if layout.think is not None else None
        return None if value is None or value == "" else duration_ns(value, layout.think_unit, str(layout.think))

    def _session(self, record: Record) -> str | None:
        layout = self._layout
        if layout.chat is not None and layout.parent is not None:
            chat, parent = str(record.get(layout.chat)), str(record.get(layout.parent))
            root = chat if parent in _NO_PARENT else self._roots.get(parent, parent)
            self._roots[chat] = root
            return root
        value = record.get(layout.session) if layout.session is not None else None
        return None if value is None or value == "" else str(value)


def block_stream(block_id: object) -> str:
    """Name the contents of a block by its id.

    Raises:
        ValueError: it is no whole number and no plain string.
    """
    if type(block_id) is int or (isinstance(block_id, str) and block_id and not set("|: \n") & set(block_id)):
        return f"b{block_id}"
    raise ValueError(f"hash id {quoted(str(block_id))} is neither a whole number nor a plain string")


def _of_hashes(line: int, ids: object, n_prompt: int, block_tokens: int, odd: list[str]) -> Pieces:
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids {quoted(str(ids))} is no list")
    streams = [block_stream(each) for each in cast("list[object]", ids)]
    n_blocks = -(-n_prompt // block_tokens)
    if len(streams) != n_blocks:
        odd.append("hashes_disagree")
    if any(type(each) is int and abs(each) >= 2**32 for each in cast("list[object]", ids)):
        odd.append("wide_hash")
    return cut_into_blocks(streams[:n_blocks], n_prompt, block_tokens, f"row{line}")


def cut_into_blocks(streams: Sequence[str], n_prompt: int, block_tokens: int, rest: str) -> Pieces:
    """Give each block its tokens; what the blocks do not cover belongs to the stream ``rest``."""
    pieces = [(stream, min(block_tokens, n_prompt - i * block_tokens)) for i, stream in enumerate(streams)]
    n_covered = sum(n for _, n in pieces)
    return (*pieces, *(((rest, n_prompt - n_covered),) if n_covered < n_prompt else ()))


def _of_ids(line: int, ids: object, n_prompt: int, odd: list[str]) -> Pieces:
    """Name every block of token ids by all ids up to its end."""
    if not isinstance(ids, list) or not all(type(each) is int for each in cast("list[object]", ids)):
        raise ValueError("token ids are no list of whole numbers")
    numbers = cast("list[int]", ids)
    if len(numbers) != n_prompt:
        odd.append("hashes_disagree")
    chain = blake2b(digest_size=8)
    streams: list[str] = []
    for start in range(0, min(len(numbers), n_prompt), ID_BLOCK_TOKENS):
        chain.update(repr(numbers[start : start + ID_BLOCK_TOKENS]).encode())
        streams.append(f"t{chain.hexdigest()}")
    covered = min(len(numbers), n_prompt)
    pieces = cut_into_blocks(streams, covered, ID_BLOCK_TOKENS, "")
    return pieces if covered == n_prompt else (*pieces, (f"row{line}", n_prompt - covered))


def _passages(kinds: object) -> tuple[str, ...]:
    """Name the parts of a prompt by their kind and id."""
    if kinds is None:
        return ()
    if not isinstance(kinds, Mapping):
        raise ValueError(f"hash_ids {quoted(str(kinds))} is no object of lists")
    lists = cast("Mapping[str, object]", kinds)
    if not all(isinstance(ids, list) for ids in lists.values()):
        raise ValueError("hash_ids is no object of lists")
    return tuple(f"{kind}:{each}" for kind, ids in lists.items() for each in cast("list[object]", ids))


def _written(value: object) -> Pieces:
    """Read ``NAME:N|NAME:N``."""
    pieces: list[tuple[str, int]] = []
    for text in str(value).split("|"):
        stream, colon, n = text.rpartition(":")
        if not colon or not stream:
            raise ValueError(f"prompt {quoted(text)} is not like NAME:N")
        pieces.append((stream, tokens(n, "tokens of a piece")))
    return tuple(pieces)


def _appended(before: Entry, n_new: int, pieces: Pieces | None) -> tuple[int, Pieces | None]:
    """The prompt of a turn that carries only what it adds to the turn before it."""
    n_prompt = before.n_prompt + before.n_output + n_new
    if before.prompt is None or (pieces is None and n_new):
        return n_prompt, None
    answer = ((f"answer{before.line}", before.n_output),) if before.n_output else ()
    return n_prompt, (*before.prompt, *answer, *(pieces or ()))

"""What stands before a piece of a prompt, each such history once: prefixes are equal if they are the same pieces.

A file of its own that stays plain Python: what mypyc compiles cannot be referenced weakly.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

Stream = str | int
"""A name out of the trace; for a prompt without identity the number of its request."""


class History:
    """The whole pieces before a piece; equal histories are one object (see ``Histories``)."""

    __slots__ = ("__weakref__", "before", "n_tokens", "stream")

    def __init__(self, before: History | None, stream: Stream, n_tokens: int) -> None:
        self.before = before
        self.stream = stream
        self.n_tokens = n_tokens


Key = tuple[History | None, Stream, int]
"""A prefix: its whole pieces, and how many tokens of which stream follow them."""


class Histories:
    """Keeps each history once, for as long as a sequence or a cached block needs it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Key, History] = WeakValueDictionary()

    def extend(self, before: History | None, stream: Stream, n_tokens: int) -> History:
        """The history of one more whole piece."""
        key = (before, stream, n_tokens)
        history = self._known.get(key)
        if history is None:
            history = self._known[key] = History(*key)
        return history

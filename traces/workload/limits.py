"""What a server makes of a request's lengths: its declared limit, and requests that exceed the context."""

from __future__ import annotations

from dataclasses import dataclass

from traces.workload.settings import require_choice

OVERLONG = ("drop", "clip", "error")
DECLARED = ("exact", "fixed", "context")


@dataclass(slots=True, init=False)
class Fitted:
    """Lengths as a server takes them: prompt + declared output never exceed the context.

    Read only; not frozen nor by keyword, as many are made.

    Attributes:
        was_cut: the declared limit ended the output early.
        was_clipped: the context shortened prompt or output.
    """

    n_prompt_tokens: int
    n_output_tokens: int
    max_output_tokens: int
    was_cut: bool
    was_clipped: bool

    def __init__(
        self, n_prompt_tokens: int, n_output_tokens: int, max_output_tokens: int, was_cut: bool, was_clipped: bool
    ) -> None:
        self.n_prompt_tokens = n_prompt_tokens
        self.n_output_tokens = n_output_tokens
        self.max_output_tokens = max_output_tokens
        self.was_cut = was_cut
        self.was_clipped = was_clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How lengths are fitted to a model, in this order:

    1. ``declared=fixed`` stops every output at ``declared_tokens``, as a real server does.
    2. A request with prompt + output above the context is dropped, refused, or clipped: the
       prompt loses its end until one output token fits, then the output until both fit.
    3. The request declares its ``exact`` output, the ``fixed`` number, or all of the
       ``context`` behind its prompt; never more than that.

    Raises:
        ValueError: a choice is unknown, or ``declared_tokens`` does not go with it.
    """

    overlong: str = "drop"
    declared: str = "exact"
    declared_tokens: int | None = None

    def __post_init__(self) -> None:
        require_choice("overlong", self.overlong, OVERLONG)
        require_choice("declared", self.declared, DECLARED)
        if self.declared == "fixed" and (self.declared_tokens is None or self.declared_tokens < 1):
            raise ValueError(f"declared=fixed needs declared_tokens of at least 1, not {self.declared_tokens}")
        if self.declared != "fixed" and self.declared_tokens is not None:
            raise ValueError(f"declared_tokens has no effect with declared={self.declared}; set declared=fixed")

    def fit(self, n_prompt_tokens: int, n_output_tokens: int, context_tokens: int) -> Fitted | None:
        """Fit one request to a context of ``context_tokens`` >= 2; ``None`` if it is dropped.

        Raises:
            ValueError: it is too long and ``overlong`` is ``error``.
        """
        n_prompt, n_output = n_prompt_tokens, n_output_tokens
        if self.declared_tokens is not None:
            n_output = min(n_output, self.declared_tokens)
        was_cut = n_output < n_output_tokens
        was_clipped = n_prompt + n_output > context_tokens
        if was_clipped:
            if self.overlong == "drop":
                return None
            if self.overlong == "error":
                raise ValueError(
                    f"{n_prompt} prompt + {n_output} output tokens exceed the context of {context_tokens}; "
                    "set overlong=drop or overlong=clip"
                )
            n_prompt = min(n_prompt, context_tokens - 1)
            n_output = min(n_output, context_tokens - n_prompt)
        max_output = n_output
        if self.declared != "exact":
            room = context_tokens - n_prompt
            max_output = min(self.declared_tokens or room, room)
        return Fitted(n_prompt, n_output, max_output, was_cut, was_clipped)

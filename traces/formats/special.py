"""Formats that need more than columns by name: ids by kind, calls within a session, whole sessions, and texts.

Rules:

- **ragpulse**: ``hash_ids`` names passages, not blocks of tokens, so a prompt's contents are not told apart; how often
  passages come back is counted. Times are seconds, as strings.
- **llmservingsim**: one request a record, or a session whose ``sub_requests`` follow one another: each begins when the
  one before has ended and its tool has run. Only the first has a time.
- **sweagent**: one session a record, its history append-only, without times.
- **sharegpt, alpaca**: texts. Tokens are estimated as one for four bytes of UTF-8, at least one for a text that is not
  empty. Every answer is a request with all that was said before it as its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from traces.formats.flat import FlatReader
from traces.formats.layout import Layout, words
from traces.formats.lines import quoted
from traces.formats.records import Record
from traces.formats.row import Entry
from traces.formats.values import Clock, duration_ns, tokens

BYTES_PER_TOKEN = 4
"""English text in GPT-like tokenisers: about 4 characters a token (platform.openai.com/tokenizer)."""

ANSWERS = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard", "model"})
QUESTIONS = frozenset({"human", "user", "system", "tool", "function"})

RAGPULSE = Layout(
    name="ragpulse",
    source="github.com/flashserve/RAGPulse, data/*_trace.jsonl (MIT)",
    needs=words("timestamp,input_length,output_length,hash_ids,session_id"),
    prompt="input_length",
    output="output_length",
    time="timestamp",
    unit="s",
    session="session_id",
    passages="hash_ids",
)

LLMSERVINGSIM = Layout(
    name="llmservingsim",
    source="github.com/casys-kaist/LLMServingSim, workloads (MIT)",
    needs=words("arrival_time_ns"),
    prompt="input_toks",
    output="output_toks",
    time="arrival_time_ns",
    unit="ns",
    is_named_unit=True,
    ids="input_tok_ids",
    session="session_id",
    also=words("sub_requests,output_tok_ids,request_id,model"),
)


class NestedReader:
    """LLMServingSim: flat requests, and sessions of requests in one record."""

    def __init__(self, layout: Layout, clock: Clock, *, is_text: bool) -> None:
        self._flat = FlatReader(layout, clock, is_text=is_text)
        self._clock = clock

    def entries(self, line: int, record: Record) -> Iterator[Entry]:
        """Read one record; see ``FlatReader.entries``."""
        calls = record.get("sub_requests")
        if calls is None:
            yield from self._flat.entries(line, record)
            return
        if not isinstance(calls, list) or not calls:
            raise ValueError("sub_requests is no list of requests")
        time_ns = self._clock.ns(record.get("arrival_time_ns"), "arrival_time_ns")
        session = str(record.get("session_id", f"row{line}"))
        think_ns = None
        made: list[Entry] = []
        for call in cast("list[object]", calls):
            if not isinstance(call, Mapping):
                raise ValueError("sub_requests is no list of requests")
            fields = cast("Mapping[str, object]", call)
            entry = next(self._flat.entries(line, {**fields, "arrival_time_ns": time_ns, "tool_duration_ns": None}))
            is_first = not made
            made.append(
                entry._replace(
                    time_ns=time_ns if is_first else None,
                    session=session,
                    think_ns=think_ns,
                    odd=("nested",),
                )
            )
            think_ns = duration_ns(fields.get("tool_duration_ns", 0), "ns", "tool_duration_ns")
        yield from made


class StepsReader:
    """SWE-agent: one session a record, as the lengths of its answers and of what came back."""

    def entries(self, line: int, record: Record) -> Iterator[Entry]:
        """Read one record; see ``FlatReader.entries``."""
        answers, returns = record.get("response"), record.get("observation")
        if not isinstance(answers, list) or not isinstance(returns, list):
            raise ValueError("response and observation are no lists of tokens")
        n_answers = [tokens(n, "response") for n in cast("list[object]", answers)]
        n_returns = [tokens(n, "observation") for n in cast("list[object]", returns)]
        if len(n_answers) != len(n_returns):
            raise ValueError(f"{len(n_answers)} responses and {len(n_returns)} observations; there must be as many")
        session = f"{record.get('task')}/{record.get('model')}"
        n_first = tokens(record.get("initial_context"), "initial_context")
        n_prompt, prompt = n_first, ((f"{line}.start", n_first),) if n_first else ()
        for turn, (n_output, n_back) in enumerate(zip(n_answers, n_returns, strict=True)):
            yield Entry(line, None, n_prompt, n_output, prompt, session)
            n_prompt += n_output + n_back
            added = ((f"{line}.{turn}", n_output), (f"{line}.{turn}back", n_back))
            prompt = (*prompt, *(piece for piece in added if piece[1]))


class ConversationReader:
    """ShareGPT: every answer is a turn of its conversation."""

    def entries(self, line: int, record: Record) -> Iterator[Entry]:
        """Read one record; see ``FlatReader.entries``."""
        said = next(
            (record[key] for key in ("conversations", "conversation", "messages", "items") if key in record), None
        )
        if not isinstance(said, list):
            raise ValueError("the conversation is no list of messages")
        name = record.get("id")
        session = f"{line}" if name is None else f"{name}#{line}"
        prompt: list[tuple[str, int]] = []
        for number, message in enumerate(cast("list[object]", said)):
            if not isinstance(message, Mapping):
                raise ValueError(f"message {number + 1} is no object")
            fields = cast("Mapping[str, object]", message)
            who = fields.get("from", fields.get("role"))
            text = fields.get("value", fields.get("content"))
            if not isinstance(text, str):
                raise ValueError(f"message {number + 1} has no text")
            n_tokens = estimated_tokens(text)
            if who in ANSWERS:
                n_prompt = sum(n for _, n in prompt)
                yield Entry(line, None, n_prompt, n_tokens, tuple(prompt), session, odd=("estimated_tokens",))
            elif who not in QUESTIONS:
                raise ValueError(f"message {number + 1} is from {quoted(str(who))}, who is unknown")
            if n_tokens:
                prompt.append((f"{line}.{number}", n_tokens))


class InstructionReader:
    """Alpaca: an instruction, perhaps with an input, and its answer."""

    def entries(self, line: int, record: Record) -> Iterator[Entry]:
        """Read one record; see ``FlatReader.entries``."""
        instruction, given, answer = record.get("instruction"), record.get("input", ""), record.get("output")
        if not (isinstance(instruction, str) and isinstance(given, str) and isinstance(answer, str)):
            raise ValueError("instruction, input and output are no texts")
        asked = f"{instruction}\n{given}" if given else instruction
        yield Entry(line, None, estimated_tokens(asked), estimated_tokens(answer), odd=("estimated_tokens",))


def estimated_tokens(text: str) -> int:
    """Estimate how many tokens a text has, without its tokeniser."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)

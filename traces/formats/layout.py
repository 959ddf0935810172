"""How a trace format with one request a record is laid out: which column says what, in which unit."""

from __future__ import annotations

from dataclasses import dataclass, fields

Unit = str
"""A key of ``values.UNITS_NS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a format, by what they say; ``None`` where it has no such column.

    A file is of this format if it has all columns in ``needs``.

    Attributes:
        name: one word.
        source: where such files come from.
        needs: columns that tell this format from others.
        prompt, output: tokens.
        before_prompt: tokens in front of the prompt that count as part of it.
        time: when the request arrived.
        unit: of times that are numbers; ``None``: a number has no meaning unless it is a date since 1970.
        end: when its answer had come, like ``time``.
        session, parent, chat: a name of the conversation, or the request that this one follows, and its own name.
        think: from the end of the turn before to this one; ``wait_after``: from the end of this turn to the next.
        think_unit: of these.
        may_lack_time: a request without a time may stand among others.
        has_increments: a turn without a time carries only what it adds to the turn before.
        is_named_unit: the name of the column of times has its unit in it.
        hashes: ids of the prompt's blocks of ``block_tokens`` tokens, in order: equal ids, equal contents.
        ids: ids of the prompt's tokens.
        passages: ids of parts of the prompt in lists by kind.
        pieces: the content of the prompt, as ``NAME:N|NAME:N``.
        error: true if it failed.
        also: columns that are known and not used.
    """

    name: str
    source: str
    needs: frozenset[str]
    prompt: str | None = None
    output: str
    before_prompt: str | None = None
    time: str | None = None
    unit: Unit | None = None
    is_named_unit: bool = False
    may_lack_time: bool = False
    has_increments: bool = False
    end: str | None = None
    session: str | None = None
    parent: str | None = None
    chat: str | None = None
    think: str | None = None
    wait_after: str | None = None
    think_unit: Unit = "s"
    hashes: str | None = None
    block_tokens: int = 512
    ids: str | None = None
    passages: str | None = None
    pieces: str | None = None
    error: str | None = None
    also: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        """All columns that a file of this format may have."""
        values = (getattr(self, field.name) for field in fields(self) if field.name not in _NO_COLUMNS)
        return self.also | self.needs | {value for value in values if isinstance(value, str)}


_NO_COLUMNS = frozenset({"name", "source", "unit", "think_unit"})


def words(text: str) -> frozenset[str]:
    """The names in a comma-separated list."""
    return frozenset(text.split(","))


LAYOUTS = (
    Layout(
        name="hbmlab",
        source="python -m traces convert and make",
        needs=words("arrival_ns,n_prompt_tokens,n_output_tokens"),
        prompt="n_prompt_tokens",
        output="n_output_tokens",
        time="arrival_ns",
        unit="ns",
        is_named_unit=True,
        may_lack_time=True,
        session="session",
        think="think_ns",
        think_unit="ns",
        pieces="prompt",
    ),
    Layout(
        name="azure_lmm",
        source="github.com/Azure/AzurePublicDataset, AzureLMMInferenceTrace_multimodal (2025); images are not counted",
        needs=words("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"),
        prompt="ContextTokens",
        output="GeneratedTokens",
        time="TIMESTAMP",
    ),
    Layout(
        name="azure",
        source="github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace 2023 and 2024 (CC-BY-4.0; ISCA 2024)",
        needs=words("TIMESTAMP,ContextTokens,GeneratedTokens"),
        prompt="ContextTokens",
        output="GeneratedTokens",
        time="TIMESTAMP",
    ),
    Layout(
        name="azure_counts",
        source="the columns of the Azure trace as older simulators name them (github.com/microsoft/vidur/pull/29)",
        needs=words("Time,PromptTokenCount,GeneratedTokenCount"),
        prompt="PromptTokenCount",
        output="GeneratedTokenCount",
        time="Time",
        unit="s",
    ),
    Layout(
        name="vidur",
        source="github.com/microsoft/vidur, data/processed_traces",
        needs=words("arrived_at,num_prefill_tokens,num_decode_tokens"),
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
        time="arrived_at",
        unit="s",
        also=words("num_total_tokens,pd_ratio"),
    ),
    Layout(
        name="vidur_lengths",
        source="github.com/microsoft/vidur and sarathi-serve, data/processed_traces with lengths only",
        needs=words("num_prefill_tokens,num_decode_tokens"),
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
        also=words("num_total_tokens,pd_ratio"),
    ),
    Layout(
        name="burstgpt",
        source="github.com/HPMLL/BurstGPT, versions 1 and 2 (CC-BY-4.0)",
        needs=words("Timestamp,Request tokens,Response tokens"),
        prompt="Request tokens",
        output="Response tokens",
        time="Timestamp",
        unit="s",
        session="Session ID",
        also=words("Model,Total tokens,Log Type,Elapsed time"),
    ),
    Layout(
        name="bailian",
        source="github.com/alibaba-edu/qwen-bailian-usagetraces-anon (Apache-2.0)",
        needs=words("chat_id,parent_chat_id,timestamp,input_length,output_length"),
        prompt="input_length",
        output="output_length",
        time="timestamp",
        unit="s",
        chat="chat_id",
        parent="parent_chat_id",
        hashes="hash_ids",
        block_tokens=16,
        also=words("type,turn"),
    ),
    Layout(
        name="lmcache",
        source="github.com/LMCache/lmcache-agent-trace: session logs",
        needs=words("timestamp,session_id,input_length,output_length"),
        prompt="input_length",
        output="output_length",
        time="timestamp",
        unit="ms",
        has_increments=True,
        session="session_id",
        think="delay",
        think_unit="ms",
        hashes="hash_ids",
        also=words("input,output,model,text_input,priority,type"),
    ),
    Layout(
        name="mooncake",
        source="github.com/kvcache-ai/Mooncake, FAST25-release/traces (Apache-2.0)",
        needs=words("timestamp,input_length,output_length"),
        prompt="input_length",
        output="output_length",
        time="timestamp",
        unit="ms",
        has_increments=True,
        session="session_id",
        think="delay",
        think_unit="ms",
        hashes="hash_ids",
        also=words("text_input,priority,type,model"),
    ),
    Layout(
        name="lmcache_gaps",
        source="Hugging Face sammshen/lmcache-agentic-traces (MIT): think times instead of arrivals",
        needs=words("session_id,pre_gap_s,input_len,output_tokens"),
        prompt="input_len",
        output="output_tokens",
        session="session_id",
        think="pre_gap_s",
        also=words("model_id"),
    ),
    Layout(
        name="tracelab",
        source="TraceLab: rounds of coding agents, without arrivals",
        needs=words("session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"),
        prompt="input_len",
        before_prompt="prefix_len",
        output="output_len",
        session="session_id",
        wait_after="tool_wait_after_ms",
        think_unit="ms",
    ),
    Layout(
        name="exgentic_calls",
        source="Hugging Face Exgentic/agent-llm-traces (CDLA-Permissive-2.0), calls with start and end",
        needs=words("session_id,start_time_iso,end_time_iso,input_tokens,output_tokens"),
        prompt="input_tokens",
        output="output_tokens",
        time="start_time_iso",
        end="end_time_iso",
        session="session_id",
        error="is_error",
        also=words("span_index,benchmark,harness,request_model,duration_ms,status_code"),
    ),
    Layout(
        name="exgentic",
        source="Hugging Face Exgentic/agent-llm-traces as inference-sim has it",
        needs=words("session,timestamp,prompt_tokens,completion_tokens"),
        prompt="prompt_tokens",
        output="completion_tokens",
        time="timestamp",
        session="session",
        also=words("benchmark"),
    ),
    Layout(
        name="usage",
        source="logs of OpenAI-like servers: a time and the usage of each request",
        needs=words("timestamp,prompt_tokens,completion_tokens"),
        prompt="prompt_tokens",
        output="completion_tokens",
        time="timestamp",
        session="session_id",
        also=words("total_tokens,model"),
    ),
    Layout(
        name="llmservingsim_log",
        source="github.com/casys-kaist/LLMServingSim, bench: what a vLLM server did, request by request",
        needs=words("arrival_time,input_toks,output_toks"),
        prompt="input_toks",
        output="output_toks",
        time="arrival_time",
        unit="s",
        also=words("request_id,queued_ts,scheduled_ts,first_token_ts,last_token_ts"),
    ),
    Layout(
        name="schedule",
        source="the cases of python -m sim schedule: seconds, and prompts by content",
        needs=words("id,arrival,prompt,output_len"),
        output="output_len",
        time="arrival",
        unit="s",
        pieces="prompt",
    ),
)
"""In the order in which they are tried: what needs more columns comes first."""

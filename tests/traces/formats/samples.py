"""One small file of each format, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path

from policies.types import NS_PER_S
from traces.formats import Entry, read_entries, read_trace

MS = 10**6

# One file of each format, as published: (name, text, (ns since the first, prompt, output) of its rows).
SAMPLES = {
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:04.0319600,3180,8",
        [(0, 4808, 10), (52 * MS, 3180, 8)],
    ),
    "azure of 2024": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n",
        [(0, 2162, 5), (990_070_000, 2399, 6)],
    ),
    "azure_lmm": (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.5Z,1,100,7\n"
        "2024-10-15T12:00:01Z,0,200,8\n",
        [(0, 100, 7), (500 * MS, 200, 8)],
    ),
    "azure_counts": ("Time,PromptTokenCount,GeneratedTokenCount\n0.5,3,4\n1.5,5,6\n", [(0, 3, 4), (NS_PER_S, 5, 6)]),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
        [(0, 374, 44), (4_314_579_000, 396, 109)],
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,1087,230,1317,API log\n",
        [(0, 472, 18), (40 * NS_PER_S, 1087, 230)],
    ),
    "burstgpt of version 2": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,,1.5,ChatGPT,472,18,490,API log\n45,7,2.5,GPT-4,1087,230,1317,Conversation log\n",
        [(0, 472, 18), (40 * NS_PER_S, 1087, 230)],
    ),
    "mooncake": (
        '{"timestamp": 27482, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 30535, "input_length": 672, "output_length": 26, "hash_ids": [46, 2354]}\n',
        [(0, 655, 52), (3053 * MS, 672, 26)],
    ),
    "bailian": (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 5, "output_length": 1, "type": "t", '
        '"turn": 1, "hash_ids": [1]}\n{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.5, "input_length": 7, '
        '"output_length": 2, "type": "t", "turn": 2}\n',
        [(0, 5, 1), (1386 * MS, 7, 2)],
    ),
    "ragpulse": (
        '{"timestamp": "82", "input_length": 3112, "output_length": 192, "hash_ids": {"sys_prompt": [1], "history": '
        '[]}, "session_id": "a"}\n{"timestamp": "93", "input_length": 3, "output_length": 8, "hash_ids": {}, '
        '"session_id": "b"}\n\n',
        [(0, 3112, 192), (11 * NS_PER_S, 3, 8)],
    ),
    "lmcache": (
        '{"timestamp": 1760587713148649, "session_id": "6c", "input_length": 9, "output_length": 15}\n'
        '{"timestamp": 1760587713148650, "session_id": "6c", "input_length": 30, "output_length": 5}\n',
        [(0, 9, 15), (1000, 30, 5)],
    ),
    "exgentic": (
        "benchmark,session,timestamp,prompt_tokens,completion_tokens\nx,17,2026-04-23T17:23:06.245972+00:00,8,1\n"
        "x,17,2026-04-23T19:23:07.245972+02:00,9,2\n",
        [(0, 8, 1), (NS_PER_S, 9, 2)],
    ),
    "usage": (
        '[{"timestamp": 1760587713.5, "prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},\n\n'
        '{"timestamp": 1760587714, "prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}]',
        [(0, 8, 1), (500 * MS, 9, 1)],
    ),
    "llmservingsim": (
        '{"input_toks": 5, "output_toks": 3, "arrival_time_ns": 7, "input_tok_ids": [1, 2, 3, 4, 5]}\n'
        '{"input_toks": 6, "output_toks": 4, "arrival_time_ns": 9}\n',
        [(0, 5, 3), (2, 6, 4)],
    ),
    "schedule": (
        "id,arrival,prompt,output_len\n0,0.5,sys:96|c0:57,21\n1,0.75,sys:96,5\n",
        [(0, 153, 21), (250 * MS, 96, 5)],
    ),
    "hbmlab": (
        "arrival_ns,n_prompt_tokens,n_output_tokens,session,think_ns,prompt\n0,3,4,,,\n5,5,6,s,7,a:2|b:3\n",
        [(0, 3, 4), (5, 5, 6)],
    ),
}  # fmt: skip


def rows_of(path: Path) -> list[tuple[int, int, int]]:
    return [(row.arrival_ns, row.n_prompt_tokens, row.n_output_tokens) for row in read_trace(path)]


def entries_of(tmp_path: Path, *lines: object) -> list[Entry]:
    path = tmp_path / "trace"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return list(read_entries(path))

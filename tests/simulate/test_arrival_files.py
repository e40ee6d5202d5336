"""Arrival files: each public kind is read by its names and units, and no mutated header is read in silence."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import numpy as np
import pytest

from pipewave.errors import BadFile, BadInput, MissingField, PipewaveError
from pipewave.simulate.arrival_files import read_trace
from pipewave.simulate.traffic import Traffic
from tests.wrong_values import replaced


def _lines(*rows: object) -> str:
    return "\n".join(map(json.dumps, rows))


def _span(second: int, tokens: tuple[int, int]) -> dict[str, object]:
    names = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    told = [{"key": name, "value": {"intValue": str(count)}} for name, count in zip(names, tokens, strict=True)]
    return {"traceId": "a", "spanId": str(second), "startTimeUnixNano": f"{1_700_000_000 + second}000000000",
            "attributes": [{"key": "gen_ai.system", "value": {"stringValue": "vllm"}}, *told]}  # fmt: skip


def _aiperf(second: int, tokens: tuple[int, int]) -> dict[str, object]:
    names = ("input_sequence_length", "output_sequence_length")
    metrics = {name: {"value": count, "unit": "tokens"} for name, count in zip(names, tokens, strict=True)}
    about = {"x_correlation_id": f"c{second}", "turn_index": 0, "request_start_ns": (1_700_000_000 + second) * 10**9,
             "request_end_ns": (1_700_000_009 + second) * 10**9, "benchmark_phase": "profiling"}  # fmt: skip
    return {"metadata": about, "metrics": metrics, "error": None}


TOKENS = ((374, 44), (396, 109))
BENCH = {"request_throughput": 1.0, "total_input_tokens": 770, "input_lens": [374, 396], "output_lens": [44, 109],
         "ttfts": [0.1, 0.1], "itls": [[0.1], [0.1]]}  # fmt: skip
FILES = {
    "Azure LLM inference trace": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.6805900,396,109\n",
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,374,44,418,API log\n7,ChatGPT,396,109,505,API log\n",
    "Mooncake": '{"timestamp": 1000, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
    '{"timestamp": 3000, "input_length": 396, "output_length": 109, "hash_ids": [2]}\n',
    "AIPerf profile_export.jsonl": _lines(_aiperf(0, TOKENS[0]), _aiperf(2, TOKENS[1])),
    "GuideLLM benchmarks.json": _lines({"benchmarks": [{"requests": {"successful": [
        {"request_id": str(i), "request_start_time": 1.7e9 + 2 * i, "prompt_tokens": p, "output_tokens": o}
        for i, (p, o) in enumerate(TOKENS)]}}]}),
    "vllm bench serve, in detail": _lines(BENCH | {"start_times": [71.5, 73.5]}),
    "sglang.bench_serving, in detail": _lines(BENCH),
    "OpenTelemetry spans": _lines(
        {"resourceSpans": [{"scopeSpans": [{"spans": [_span(0, TOKENS[0]), _span(2, TOKENS[1])]}]}]}),
    "ShareGPT": _lines([{"id": "x", "conversations": [{"from": "human", "value": "a" * 4 * 374}, {"from": "gpt", "value": "b" * 4 * 44}]},
                        {"id": "y", "conversations": [{"from": "human", "value": "a" * 4 * 396}, {"from": "gpt", "value": "b" * 4 * 109}]}]),
    "PipeWeave workload": "num_prefill_tokens,num_decode_tokens,output_tokens\n374,9,44\n396,9,109\n",
    "requests": "arrival_time,prompt_tokens,output_tokens\n0.5,374,44\n2.5,396,109\n",
}  # fmt: skip
TIMELESS = ("sglang.bench_serving, in detail", "ShareGPT", "PipeWeave workload")
SESSIONS = """session,turn,arrival_time,think_s,shared_prefix,prompt_tokens,output_tokens
a,0,1.0,,32,100,20
b,0,0.0,,32,90,10
a,1,,2.5,32,150,30
a,2,,1.0,32,200,8
"""


def _read(kind: str, text: str) -> Traffic:
    return read_trace("trace", text, rate=0.5 if kind in TIMELESS else None)


@pytest.mark.parametrize("kind", FILES)
def test_each_public_kind_is_the_same_requests(kind: str) -> None:
    traffic = _read(kind, FILES[kind])
    assert traffic.arrival_s.tolist() == [0.0, 2.0]
    assert list(zip(traffic.input_len.tolist(), traffic.output_len.tolist(), strict=True)) == list(TOKENS)
    assert traffic.notes[0].startswith(f"read as {kind}: ")
    if kind in TIMELESS:
        with pytest.raises(MissingField, match="no column of times"):
            read_trace("trace", FILES[kind])


def _mutated(word: str, rng: random.Random) -> str:
    at = rng.randrange(len(word))
    return rng.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + rng.choice("xqz_") + word[at:],
            word.swapcase(),
            word + "_ms",
            "x" + word,
        ]
    )


def test_no_mutated_header_is_read_in_silence() -> None:
    """Each of 200 is refused, or read as the very same requests (a column that no kind reads)."""
    rng, refused = random.Random(7), 0
    texts = FILES | {"sessions": SESSIONS}
    for draw in range(200):
        kind = list(texts)[draw % len(texts)]
        text = texts[kind]
        names = text.split("\n")[0].split(",") if text[0] not in "{[" else _keys(json.loads(text.split("\n")[0]))
        name = rng.choice(names)
        changed = (
            text.replace(f'"{name}"', f'"{_mutated(name, rng)}"')
            if text[0] in "{["
            else text.replace(name, _mutated(name, rng), 1)
        )
        try:
            found = _read(kind, changed)
        except PipewaveError as error:
            assert error.field
            refused += 1
            continue
        plain = _read(kind, text)
        for field in ("arrival_s", "input_len", "output_len"):
            assert np.array_equal(getattr(found, field), getattr(plain, field)), (kind, name, changed[:200])
        assert found.shared == plain.shared, (kind, name)
        assert found.notes
    assert refused > 120


def _keys(value: object) -> list[str]:
    """All names of a document, those of attributes included."""
    if isinstance(value, list):
        return [key for each in value for key in _keys(each)]
    if not isinstance(value, dict):
        return []
    own = [str(value["key"])] if "key" in value else []
    return [*own, *value, *(key for each in value.values() for key in _keys(each))]


def test_turns_wait_for_answers_and_share_what_was_said() -> None:
    traffic = read_trace("trace", SESSIONS)
    assert traffic.arrival_s.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert traffic.after is not None
    assert traffic.think_s is not None
    assert traffic.after.tolist() == [-1, -1, 1, 2]
    assert traffic.think_s.tolist() == [0, 0, 2.5, 1.0]
    assert traffic.sessions == 2
    shared = traffic.shared
    assert shared is not None
    common = set(shared.paths[0]) & set(shared.paths[1])
    assert [shared.ends[segment] for segment in common] == [32]
    assert shared.paths[1] == shared.paths[2] == shared.paths[3]
    assert shared.known == (100, 120, 180, 208)
    assert "4 requests in 2 sessions that wait for answers" in str(traffic) and "sessions a second" in str(traffic)
    with pytest.raises(BadInput, match="sessions or hashes say what they share"):
        traffic.with_prefix(0.5)


@pytest.mark.parametrize(
    ("line", "error", "field"),
    [
        ("a,3,,1.0,32,207,8", BadInput, "prompt_tokens"),  # shorter than the turn before it with its answer
        ("a,3,,,32,300,8", MissingField, "trace"),  # neither a time nor an answer to wait for
        ("c,0,3.0,,400,300,8", BadInput, "shared_prefix"),
        ("a,2,,1.0,32,300,8", BadInput, "turn"),
        ("a,x,,1.0,32,300,8", BadInput, "turn"),
        ("a,3,,-1,32,300,8", BadInput, "think_s"),
    ],
)
def test_turns_that_cannot_be_are_named(line: str, error: type[PipewaveError], field: str) -> None:
    with pytest.raises(error) as caught:
        read_trace("trace", SESSIONS + line + "\n")
    assert caught.value.field == field


def test_a_file_without_lengths_is_told_its_own_columns() -> None:
    with pytest.raises(MissingField, match="only columns arrival_time:prompt_tokens:output_tokens: name a column"):
        read_trace("trace", "arrival_time:prompt_tokens:output_tokens\n0:900:60\n")


TURNS = [
    {"session": "a", "turn": 0, "time": 1.7e9, "shared_prefix": 32, "input_len": 100, "output_len": 20},
    {"session": "a", "turn": 1, "time": None, "shared_prefix": 32, "input_len": 150, "output_len": 20, "think_s": 2.0},
]


@pytest.mark.parametrize("kind", [kind for kind, text in FILES.items() if text[0] in "{["])
def test_a_value_of_any_type_is_read_or_refused(kind: str) -> None:
    for changed in replaced(json.loads(FILES[kind].split("\n")[0])):
        with suppress(PipewaveError):
            _read(kind, json.dumps(changed))


def test_values_of_sessions_are_read_or_refused() -> None:
    for changed in replaced(TURNS):
        with suppress(PipewaveError):
            read_trace("trace", json.dumps(changed))


@pytest.mark.parametrize("when", [1.7e9, 1_700_000_000_000, "2023-11-16 18:15:46"])
def test_turns_that_wait_need_no_time_whatever_tells_it(when: object) -> None:
    traffic = read_trace("trace", json.dumps([TURNS[0] | {"time": when}, TURNS[1]]))
    assert traffic.after is not None and traffic.after.tolist() == [-1, 0] and traffic.arrival_s.tolist() == [0.0, 0.0]
    with pytest.raises(MissingField, match="row 2: has no time"):
        read_trace("trace", json.dumps([TURNS[0] | {"time": when}, TURNS[1] | {"think_s": None}]))


def test_a_long_session_is_ordered_as_its_turns_are_numbered() -> None:
    turns = [
        {"session": 1, "turn": turn, "time_s": 5.0, "input_len": 1 + 2 * turn, "output_len": 1} for turn in range(99)
    ]
    order = random.Random(3).sample(turns, len(turns))
    traffic = read_trace("trace", json.dumps(order), concurrency=1)
    assert traffic.input_len.tolist() == [turn["input_len"] for turn in turns]
    assert traffic.after is not None and traffic.after.tolist() == list(range(-1, 98))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("arrival_time,prompt_tokens,output_tokens\n1,2,3\n1,2,3,4\n", "line 3: more values than columns"),
        ("arrival_time,prompt_tokens,output_tokens\n1,2," + "3" * 200_000, "no table"),
        ("[" * 100_000, "line 1: not valid JSON"),
    ],
)
def test_what_is_no_table_and_no_document_is_told_so(text: str, says: str) -> None:
    with pytest.raises(BadFile, match=says):
        read_trace("trace", text)


@pytest.mark.parametrize("parting", [",", ", ", ";", "\t"])
def test_columns_may_be_parted_by_semicolons_or_tabs(parting: str) -> None:
    """As spreadsheets of other countries write them."""
    rows = [("arrival_time", "prompt_tokens", "output_tokens"), ("0", "10", "5"), ("1.5", "20", "6")]
    found = read_trace("requests.csv", "\n".join(parting.join(row) for row in rows))
    assert found.arrival_s.tolist() == [0.0, 1.5]
    assert (found.input_len.tolist(), found.output_len.tolist()) == ([10, 20], [5, 6])

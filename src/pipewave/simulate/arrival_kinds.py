"""Kinds of arrival files: by which columns each is known, what they mean, and in which units. One table.

A file is of a kind when it has all columns that the kind needs and no other than those listed. What fits no kind is
refused: a column that nobody knows may be the times under another name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pipewave.errors import BadInput, MissingField, did_you_mean

SECONDS, MILLISECONDS, NANOSECONDS, DATES, TELLS_ITSELF = 1.0, 1e-3, 1e-9, 0.0, -1.0


@dataclass(frozen=True, slots=True)
class ArrivalKind:
    """Columns of a kind; of several names for one thing a file must have exactly one."""

    name: str
    times: Mapping[str, float]  # column of arrival times → seconds of its unit; empty: the kind has none
    prompt: tuple[str, ...]  # tokens
    answer: tuple[str, ...]
    unread: tuple[str, ...] = ()  # other columns that it may have, as patterns
    needs: tuple[str, ...] = ()  # other columns that it must have
    hashes: str = ""  # optional column: hashes of the prompt's blocks
    session: str = ""  # optional columns of turns
    turn: str = ""
    prefix: str = ""
    think: str = ""
    note: str = ""

    @property
    def told(self) -> tuple[str, ...]:
        """Columns that are read where they are there."""
        names = (*self.times, *self.prompt, *self.answer, *self.needs)
        return (*names, *(one for one in (self.hashes, self.session, self.turn, self.prefix, self.think) if one))

    def fits(self, columns: Collection[str]) -> bool:
        """Whether a file with these columns is of this kind."""
        roles = ((self.prompt, 1), (self.answer, 1), (tuple(self.times), len(self.times) > 0))
        one_each = all(sum(name in columns for name in names) == wanted for names, wanted in roles)
        return one_each and not self.missing(columns) and not self.unknown(columns)

    def says(self, columns: Collection[str]) -> int:
        """How many columns of a file are of this kind."""
        return sum(name in columns for name in self.told)

    def missing(self, columns: Collection[str]) -> list[str]:
        """Columns that it needs and a file lacks."""
        return [name for name in self.needs if name not in columns]

    def unknown(self, columns: Collection[str]) -> list[str]:
        """Columns of a file that it does not know."""
        known = self.told
        return [c for c in columns if c not in known and not any(fnmatchcase(c, pattern) for pattern in self.unread)]


PLAIN_TIMES = {
    **dict.fromkeys(("arrival_time", "arrived_at", "arrival_s", "time_s", "timestamp_s", "arrival_time_s"), SECONDS),
    **dict.fromkeys(("arrival_ms", "arrival_time_ms", "time_ms", "timestamp_ms"), MILLISECONDS),
    **dict.fromkeys(("arrival", "time", "timestamp", "Timestamp", "TIMESTAMP", "date", "request_time"), TELLS_ITSELF),
}
PROMPTS = ("prompt_tokens", "input_tokens", "num_prefill_tokens", "input_length", "input_len", "prompt_len", "isl")
ANSWERS = (
    "output_tokens", "completion_tokens", "num_decode_tokens", "output_length", "output_len", "osl", "response_tokens",
)  # fmt: skip
HARMLESS = ("", "id", "request_id", "model", "user", "user_id", "total_tokens", "num_total_tokens", "pd_ratio")
TURNS: dict[str, Any] = {"session": "session", "turn": "turn", "prefix": "shared_prefix", "think": "think_s"}
OTEL_PROMPT = ("attributes.gen_ai.usage.input_tokens", "attributes.gen_ai.usage.prompt_tokens")
OTEL_ANSWER = ("attributes.gen_ai.usage.output_tokens", "attributes.gen_ai.usage.completion_tokens")

KINDS = (
    ArrivalKind("Azure LLM inference trace", {"TIMESTAMP": DATES}, ("ContextTokens",), ("GeneratedTokens",)),
    ArrivalKind(
        "BurstGPT", {"Timestamp": SECONDS}, ("Request tokens",), ("Response tokens",),
        ("Model", "Total tokens", "Log Type", "Session ID", "Elapsed time"),
    ),
    ArrivalKind(
        "Mooncake", {"timestamp": MILLISECONDS}, ("input_length",), ("output_length",), hashes="hash_ids",
        unread=("type", "chat_id", "parent_chat_id"),
    ),
    ArrivalKind(
        "AIPerf profile_export.jsonl", {"metadata.request_start_ns": NANOSECONDS},
        ("metrics.input_sequence_length.value",), ("metrics.output_sequence_length.value",),
        ("metadata.*", "metrics.*", "error", "error.*", "trace_data", "trace_data.*"),
        needs=("metadata.x_correlation_id", "metadata.turn_index"),
        session="metadata.x_correlation_id", turn="metadata.turn_index",
    ),
    ArrivalKind(
        "GuideLLM benchmarks.json", {"request_start_time": SECONDS, "start_time": SECONDS}, ("prompt_tokens",),
        ("output_tokens",), ("*",), needs=("request_id",),
    ),
    ArrivalKind("vllm bench serve, in detail", {"start_times": SECONDS}, ("input_lens",), ("output_lens",), ("*",),
                needs=("ttfts", "itls", "request_throughput")),
    ArrivalKind("sglang.bench_serving, in detail", {}, ("input_lens",), ("output_lens",), ("*",),
                needs=("ttfts", "itls", "request_throughput", "total_input_tokens")),
    ArrivalKind("OpenTelemetry spans", {"startTimeUnixNano": NANOSECONDS}, OTEL_PROMPT, OTEL_ANSWER, ("*",),
                needs=("spanId", "traceId")),
    ArrivalKind("ShareGPT", {}, ("conversations.prompt_tokens",), ("conversations.answer_tokens",), ("id",),
                session="conversations.session", turn="conversations.turn",
                note="token counts are estimated from the texts, 4 characters each"),
    # Its tables hold a request's own output, num_decode_tokens, and the one that its batch ran.
    ArrivalKind("PipeWeave workload", {}, ("num_prefill_tokens",), ("output_tokens",), needs=("num_decode_tokens",)),
    ArrivalKind("requests", PLAIN_TIMES, PROMPTS, ANSWERS, HARMLESS, hashes="hash_ids", **TURNS),
    ArrivalKind("requests without times", {}, PROMPTS, ANSWERS, HARMLESS, hashes="hash_ids", **TURNS),
)  # fmt: skip


def kind_of(columns: Collection[str]) -> ArrivalKind:
    """The kind of a file with these columns. Raises MissingField or BadInput, which say what is nearest."""
    for kind in KINDS:
        if kind.fits(columns):
            return kind
    nearest = min(
        KINDS[::-1], key=lambda kind: len(kind.unknown(columns)) + len(kind.missing(columns)) - kind.says(columns)
    )
    for what, names in (("prompt", nearest.prompt), ("output", nearest.answer), ("time", tuple(nearest.times))):
        said = [name for name in names if name in columns]
        if len(said) > 1:
            raise BadInput(f"trace has two columns of one meaning: {' and '.join(said)}; drop one", field=said[1])
        if not said and names and what != "time":
            stranger = next(iter(nearest.unknown(columns)), "")
            meant = did_you_mean(stranger, names) if stranger else ""
            raise MissingField(f"trace has no {what} length: name a column {', '.join(names)}{meant}", field="trace")
    if lacks := nearest.missing(columns):
        raise MissingField(f"trace looks like {nearest.name}, but has no column {lacks[0]}", field="trace")
    stranger = next(iter(nearest.unknown(columns)), "")
    raise BadInput(
        f"trace column {stranger!r} is not known, and might be a time; drop it, or name it as one of "
        f"{', '.join(nearest.told)}{did_you_mean(stranger, nearest.told)}",
        field=stranger or "trace",
    )

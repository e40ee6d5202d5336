"""AIPerf, genai-perf and GuideLLM as people paste them: what each asks, leaves open, or would do in several runs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pipewave.cli import build
from pipewave.errors import BadInput, MissingField
from pipewave.files import packaged
from pipewave.published.client_command import OPTIONS, read
from pipewave.simulate.traffic import Traffic
from tests.command_line import CliRunner

AIPERF = "aiperf profile --model m --url http://localhost:8000 --endpoint-type chat --streaming"
GUIDE = "guidellm benchmark --target http://localhost:8000"
SYNTHETIC = "--data prompt_tokens=1000,output_tokens=250"


def sizes(traffic: Traffic) -> tuple[int, int | None, float, float]:
    """Requests, most in flight, mean tokens in and out."""
    return len(traffic), traffic.concurrency, float(traffic.input_len.mean()), float(traffic.output_len.mean())


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (f"{AIPERF} --synthetic-input-tokens-mean 1000 --output-tokens-mean 250 --concurrency 32 --request-count 320",
         (320, 32, 1000, 250)),
        (f"{AIPERF} --osl 100 --concurrency 4", (10, 4, 550, 100)),  # AIPerf's defaults
        (f"{AIPERF} --isl 64 --osl 8 --num-sessions 50 --session-turns-mean 1", (50, None, 64, 8)),
        ("genai-perf profile -m m --osl 100 --concurrency 4", (10, 4, 550, 100)),
        ("genai-perf profile -m m --osl 100 --concurrency 40 -- --max-threads=8", (80, 40, 550, 100)),
        (f"{GUIDE} --rate-type concurrent --rate 32 {SYNTHETIC} --max-seconds 60", (320, 32, 1000, 250)),
        (f"{GUIDE} run --profile synchronous {SYNTHETIC} --max-requests 7", (7, 1, 1000, 250)),
        (f"{GUIDE} --profile throughput --rate 64 {SYNTHETIC} --max-requests 500", (500, 64, 1000, 250)),
        (f"""{GUIDE} --profile concurrent --rate 8 --max-requests 9 --data '{{"prompt_tokens": 30, "output_tokens": 3}}'""",
         (9, 8, 30, 3)),
        ("guidellm run --backend kind=openai_http,target=http://x --profile kind=concurrent,streams=16 "
         "--data kind=synthetic_text,prompt_tokens=256,output_tokens=128 --constraint kind=max_requests,count=100",
         (100, 16, 256, 128)),
    ],
)  # fmt: skip
def test_what_a_line_asks(command: str, wanted: tuple[Any, ...]) -> None:
    assert sizes(read(command).traffic) == wanted


@pytest.mark.parametrize(
    ("words", "rate", "count", "even"),
    [
        (f"{AIPERF} --isl 9 --osl 9 --request-rate 4 --benchmark-duration 60", 4, 240, False),
        (f"{AIPERF} --isl 9 --osl 9 --request-rate 4 --arrival-pattern constant --request-count 40", 4, 40, True),
        ("genai-perf profile -m m --osl 9 --request-rate 4 --request-count 40", 4, 40, True),
        (f"{GUIDE} --rate-type constant --rate 2 {SYNTHETIC} --max-seconds 30", 2, 60, True),
        (f"{GUIDE} --rate-type poisson --rate 2 {SYNTHETIC} --max-seconds 30 --max-requests 20", 2, 20, False),
    ],
)
def test_rates_last_as_long_as_they_are_sent(words: str, rate: float, count: int, even: bool) -> None:
    """Each client's own gaps: AIPerf's are Poisson's, those of perf_analyzer under genai-perf are equal."""
    load = read(words)
    gaps = np.diff(load.traffic.arrival_s)
    assert len(load.traffic) == count and gaps.mean() == pytest.approx(1 / rate)
    assert (gaps.std() < 1e-3 * gaps.mean()) == even
    assert not any("how many requests" in note for note in load.notes)


def test_a_run_that_time_ends_says_how_many_requests_stand_for_it() -> None:
    load = read(f"{GUIDE} --rate-type concurrent --rate 8 {SYNTHETIC} --max-seconds 60")
    assert "how many requests guidellm benchmark sends follows from the time it runs: answered over 80" in load.notes


def test_deviations_are_normal_and_bounds_hold() -> None:
    drawn = read(f"{AIPERF} --isl 1000 --isl-stddev 200 --osl 250 --osl-stddev 25 --request-count 4000").traffic
    assert drawn.input_len.mean() == pytest.approx(1000, rel=0.02)
    assert drawn.input_len.std() == pytest.approx(200, rel=0.05)
    assert drawn.output_len.std() == pytest.approx(25, rel=0.05)
    assert abs(float(np.corrcoef(drawn.input_len, drawn.output_len)[0, 1])) < 0.05
    lengths = "prompt_tokens=100,prompt_tokens_stdev=50,prompt_tokens_min=80,prompt_tokens_max=120,output_tokens=64"
    cut = read(f"{GUIDE} --rate-type throughput --rate 9 --max-requests 500 --data {lengths}").traffic.input_len
    assert (cut.min(), cut.max()) == (80, 120) and 0.5 < np.mean((cut == 80) | (cut == 120)) < 0.8
    even = read(f"{GUIDE} --rate-type throughput --rate 9 --max-requests 4000 --data "
                "prompt_tokens=100,output_tokens=64,output_tokens_min=32,output_tokens_max=96").traffic.output_len  # fmt: skip
    assert (even.min(), even.max()) == (32, 96) and even.std() == pytest.approx(64 / 12**0.5, rel=0.05)


def test_wide_deviations_are_drawn_as_each_client_does() -> None:
    """AIPerf draws again below zero, so that the mean moves by φ(1)/Φ(1) = 0.288 deviations; genai-perf cuts."""
    words = "profile -m m --isl 200 --isl-stddev 200 --osl 9 --request-count 20000 --num-dataset-entries 20000"
    again, cut = (read(f"{program} {words}").traffic.input_len for program in ("aiperf", "genai-perf"))
    assert again.mean() == pytest.approx(200 + 0.2876 * 200, rel=0.02)
    assert cut.mean() == pytest.approx(200 * (1 + 0.0833), rel=0.02) and (cut == 1).mean() == pytest.approx(
        0.16, abs=0.01
    )


def test_prompts_that_repeat_are_found_again() -> None:
    """Twenty prompts for a hundred requests: eighty are in the cache, unless the engine keeps none."""
    words = f"{AIPERF} --isl 1024 --osl 4 --concurrency 1 --request-count 100 --num-dataset-entries 20"
    shared = read(words).traffic.shared
    assert shared is not None and len(set(shared.paths)) == 20
    found = {}
    for server in ("vllm serve Qwen3-0.6B", "vllm serve Qwen3-0.6B --no-enable-prefix-caching"):
        done = CliRunner().invoke(build(), ["serve", "--gpu", "H200", "--from-command", server, "--client", words, "--json",
                                            "--no-interval"], catch_exceptions=False)  # fmt: skip
        found[server] = json.loads(done.output)["prefix_found_share"]
    assert list(found.values()) == [pytest.approx(0.8, abs=0.02), 0]


def test_prefixes_goals_and_seeds() -> None:
    load = read(f"{AIPERF} --isl 100 --osl 10 --num-prefix-prompts 4 --prefix-prompt-length 64 --request-count 40 "
                "--goodput 'time_to_first_token:300 inter_token_latency:20 request_latency:5000'")  # fmt: skip
    assert set(load.traffic.input_len.tolist()) == {164}
    assert load.traffic.found_len is not None and (load.traffic.found_len == 0).sum() == 4
    assert {one.metric: one.ms for one in load.limits} == {"ttft_ms": 300, "tpot_ms": 20, "e2e_ms": 5000}
    words = f"{AIPERF} --isl 100 --isl-stddev 30 --osl 10 --request-count 40 --random-seed"
    one, same, other = (read(f"{words} {seed}").traffic.input_len.tolist() for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize(
    ("command", "error", "says"),
    [
        (f"{AIPERF} --concurrency 8", MissingField, "how long answers are: add --output-tokens-mean"),
        (f"{AIPERF} --osl 9 --concurrency 8,16", BadInput, "several runs; ask for one at a time"),
        (f"{AIPERF} --osl 9 --session-turns-mean 4", BadInput, "turns of a request: only 1 is modelled"),
        (f"{AIPERF} --osl 9 --input-file x.jsonl", BadInput, "--input-file: its file is not read; give it as --trace FILE"),
        (f"{AIPERF} --osl 9 --search-metric x", BadInput, "pipewave does with --find-rate"),
        (f"{AIPERF} --osl 9 --goodput tokens_per_second:50", BadInput, "must name one of ttft"),
        (f"{AIPERF} --osl 9 --output-token-mean 9", BadInput, "did you mean --output-tokens-mean"),
        (f"{GUIDE} --rate-type constant {SYNTHETIC}", MissingField, "how many requests a second: add --rate"),
        (f"{GUIDE} --rate-type concurrent {SYNTHETIC}", MissingField, "how many requests in flight"),
        (f"{GUIDE} --rate-type constant --rate 1,2,4 {SYNTHETIC}", BadInput, "ask for one at a time"),
        (f"{GUIDE} --rate-type constant --rate 1 --rate 2 {SYNTHETIC}", BadInput, "--rate is given more than once"),
        (f"{GUIDE} --rate-type sweep {SYNTHETIC}", BadInput, "--find-rate"),
        (f"{GUIDE} {SYNTHETIC}", BadInput, "without --rate-type"),
        (f"{GUIDE} --rate-type ramp {SYNTHETIC}", BadInput, "must be one of sweep"),
        (f"{GUIDE} --rate-type throughput --rate 4 --data wikitext", MissingField, "give a file of requests as --trace FILE"),
        (f"{GUIDE} --rate-type throughput --rate 4 --data '{{x'", BadInput, "not a JSON object"),
    ],
)  # fmt: skip
def test_what_has_no_one_answer_is_refused_with_the_way_out(command: str, error: type[BadInput], says: str) -> None:
    with pytest.raises(error) as told:
        read(command)
    assert says in told.value.message and told.value.field in ("client", "goodput")


def test_entries_that_are_not_modelled_are_told() -> None:
    data = "prompt_tokens=9,output_tokens=9,output_tokens_variance=3"
    notes = read(f"{GUIDE} --rate-type throughput --rate 4 --max-requests 4 --rampup 5 --data {data}").notes
    assert "--data output_tokens_variance: not modelled; answered as without it" in notes
    assert "--rampup: not modelled; answered as without it" in notes


def test_every_setting_that_options_give_is_used_or_held_to_one_value() -> None:
    """A field of a table that no code reads would be dropped in silence."""
    known = {"input", "input_stdev", "input_min", "input_max", "output", "output_stdev", "output_min", "output_max", "ratio",
             "prefix", "groups", "each", "requests", "sessions", "seconds", "concurrency", "rate", "burstiness", "seed",
             "entries", "dataset", "answer", "goals", "way", "limit", "turns", "batch"}  # fmt: skip
    for name, table in packaged.shared(OPTIONS).items():
        if isinstance(table, dict) and "fields" in table:
            given = {
                *table["fields"],
                *(key for one in table.get("entries", {}).values() for key in one.values() if key),
            }
            assert table["source"] and given <= known, name
            assert {"turns", "batch"} & given <= set(table.get("only", {}))


@pytest.mark.parametrize("word", ["nan", "-inf", "1e300", "-5", "x", "[]"])
@pytest.mark.parametrize(
    "option", ["--isl", "--isl-stddev", "--osl-stddev", "--request-count", "--request-rate", "--num-dataset-entries",
               "--prefix-prompt-length", "--benchmark-duration", "--random-seed", "--concurrency"]
)  # fmt: skip
def test_impossible_numbers_raise_typed_errors_or_are_finite(option: str, word: str) -> None:
    try:
        traffic = read(f"{AIPERF} --osl 9 {option} {word}").traffic
    except BadInput:
        return
    assert 1 <= traffic.input_len.min() <= traffic.input_len.max() < 1 << 25 and np.isfinite(traffic.arrival_s).all()

"""Command lines as vLLM's newest releases let people write them: entries of objects, numbers with k, short names."""

from __future__ import annotations

from typing import Any

import pytest

from pipewave.errors import BadInput
from pipewave.published import client_command, server_command
from pipewave.published.server_command import JSON
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of

NOT_MODELLED = "not modelled; answered as without it"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (
            "--speculative-config.method ngram --speculative-config.num_speculative_tokens=3",
            {"speculative": of("ngram,tokens=3")},
        ),
        ("""-sc '{"method": "ngram"}' -sc.num_speculative_tokens 3""", {"speculative": of("ngram,tokens=3")}),
        ("--max-num-batched-tokens 16k", {"max_num_batched_tokens": 16_000}),
        ("--max-num-batched-tokens=16K", {"max_num_batched_tokens": 16_384}),
        ("--max-num-batched-tokens 2.5k --max-num-seqs 64", {"max_num_batched_tokens": 2500, "max_num_seqs": 64}),
        ("--device-memory-utilization 0.5", {"gpu_memory_utilization": 0.5}),
    ],
)
def test_what_vllm_takes(words: str, changes: dict[str, Any]) -> None:
    found = server_command.read(f"vllm serve Qwen3-0.6B {words}")
    assert found.setup == Setup(engine="vllm", **changes) and not found.notes


def test_experts_by_their_short_name_and_by_entries() -> None:
    found = server_command.read("vllm serve DeepSeek-V3 -dp 8 -ep --enable-eplb --eplb-config.num_redundant_experts 32")
    assert (found.setup.dp, found.setup.ep) == (8, 8)
    assert found.setup.balance is not None and found.setup.balance.redundant == 32


@pytest.mark.parametrize("words", ["infk", "k", "1e400k", "nanM", "-2k", "''", "16q"])
def test_numbers_that_are_none(words: str) -> None:
    with pytest.raises(BadInput, match="max_num_batched_tokens"):
        server_command.read(f"vllm serve Qwen3-0.6B --max-num-batched-tokens {words}")


@pytest.mark.parametrize(
    ("words", "option"),
    [("--structured-outputs-config.backend xgrammar", "--structured-outputs-config"), ("-pcp 2", "-pcp"),
     ("-O.cudagraph_mode=NONE", "--compilation-config"), ("--enable-prefix-caching.x 3", "--enable-prefix-caching")],
)  # fmt: skip
def test_entries_and_short_names_that_are_not_modelled_are_told(words: str, option: str) -> None:
    found = server_command.read(f"vllm serve Qwen3-0.6B {words}")
    assert found.setup == Setup(engine="vllm") and found.notes[0].startswith(f"{option}: ")


def test_entries_of_no_object_are_refused() -> None:
    with pytest.raises(BadInput, match="not a JSON object"):
        server_command.read("vllm serve Qwen3-0.6B --speculative-config '{' --speculative-config.method mtp")
    assert {"drafts", "eplb_config"} == set(JSON)


def test_the_environment_of_a_server_is_told() -> None:
    """It chooses kernels and exchanges; nothing had said that it was passed over."""
    line = "HF_HOME=/x VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve Qwen3-0.6B"
    assert server_command.read(line).notes == ("VLLM_ATTENTION_BACKEND: the environment is not read",)
    line = "docker run -e VLLM_ALL2ALL_BACKEND=naive vllm/vllm-openai:v0.22.1 --model Qwen3-0.6B"
    assert server_command.read(line).notes == ("VLLM_ALL2ALL_BACKEND: the environment is not read",)


def test_words_that_start_a_client_are_no_options() -> None:
    for line in ("python3 -m sglang.bench_serving --num-prompts 9", "python -u benchmark_serving.py --num-prompts 9",
                 "/opt/venv/bin/vllm bench serve --num-prompts 9"):  # fmt: skip
        load = client_command.read(line)
        assert len(load.traffic) == 9 and not load.notes

"""Exchanges, overlap and balance of experts in `serve`: engines' words, what they change, and agreement with `estimate`'s
kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipewave.errors import BadInput
from pipewave.models.expert_parallel import Balance, balance_of
from pipewave.models.kernels import Batch
from pipewave.published.server_command import read
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from pipewave.software.front import INSIDE
from tests.simulate.serving import serve

BASE = Setup(dp=16, ep=16, engine="sglang", gpu_memory_utilization=0.85, front=INSIDE)
TRAFFIC = synthetic(128, input_len=1024, output_len=16, concurrency=64)
BUSY = synthetic(512, input_len=1024, output_len=16, concurrency=256)
SGLANG = (
    "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp-size 16 --enable-dp-attention"
)


def _server(**changes: Any) -> Server:
    return Server.of("DeepSeek-V3", "H200", replace(BASE, **changes), TRAFFIC.longest)


def _tpot(**changes: Any) -> float:
    return float(serve(_server(**changes), BUSY).answer["tpot_mean_ms"])


@pytest.mark.parametrize("two_batch", [False, True])
def test_a_table_of_ranks_reads_what_a_step_is_predicted(two_batch: bool) -> None:
    server = _server(exchange="deepep", two_batch=two_batch)
    for batch, work in (
        (Batch.of([1] * 64, [1024] * 64), (64, 64 * 1024, ())),
        (Batch.of([2048] * 2, [2048] * 2), (0, 0, [(2048, 0), (2048, 0)])),
    ):
        step = float(server.runner.steps([replace(batch, padded=None)]).total_us[0]) * 1e-6
        assert server.table.group_seconds([work] * 16) == pytest.approx(step, rel=0.05)


@pytest.mark.slow
def test_skewed_experts_slow_a_server_and_copies_mend_it() -> None:
    # Of a server that is busy: few tokens read most experts once, and a copy is one more to read.
    even, skewed, mended = (_tpot(exchange="deepep", balance=b) for b in (None, Balance(), Balance(32)))
    assert even < mended < skewed
    assert mended - even < (skewed - even) / 3  # two thirds of what the skew costs


def test_copies_take_cache() -> None:
    assert _server(balance=Balance(32)).memory.kv_tokens < _server(balance=Balance()).memory.kv_tokens


def test_words_of_engines() -> None:
    words = f"{SGLANG} --ep-size 16 --moe-a2a-backend deepep --deepep-mode normal --enable-two-batch-overlap"
    setup = read(f"{words} --enable-eplb --ep-num-redundant-experts 32").setup
    assert (setup.exchange, setup.two_batch, setup.balance) == ("deepep_high_throughput", True, Balance(32))
    vllm = "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 --enable-expert-parallel --all2all-backend deepep_low_latency"
    setup = read(vllm + """ --enable-dbo --enable-eplb --eplb-config '{"num_redundant_experts": 16}'""").setup
    assert (setup.exchange, setup.two_batch, setup.balance) == ("deepep_low_latency", True, Balance(16))
    assert read(vllm).setup.balance is None and balance_of("redundant=16") == Balance(16)


def test_an_exchange_that_is_not_known_is_refused() -> None:
    with pytest.raises(BadInput, match="all2all_backend"):
        _server(exchange="carrier-pigeon")


def test_scans_of_delta_nets_by_the_engines_word() -> None:
    command = "vllm serve Qwen/Qwen3-30B-A3B --gdn-prefill-backend "
    assert [read(command + word).setup.delta_backend for word in ("triton", "auto")] == ["triton", None]

"""Energy is counted from what the families' analyses say is done: held to hand arithmetic for every family and phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from pipewave.calls.families import (
    Attention,
    Call,
    Elementwise,
    FusedMoe,
    Gemm,
    Mla,
    RmsNorm,
    SiluAndMul,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    send_recv,
)
from pipewave.calls.operators import BatchedGemm
from pipewave.files import packaged
from pipewave.gpus import find
from pipewave.kernels.base import FAMILIES
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.physics.power import Work, board_of
from pipewave.prediction.api import answer_one, predict
from pipewave.step import Runner, find_engine
from pipewave.step.kernel_latency import kernel_latencies

TRI = 1000 * 1001 / 2  # query-key pairs of a causal prompt of 1000 tokens
PROMPT = Attention((1000,), (1000,), 32, 8, 128)
DECODE = Attention((1, 1), (500, 700), 32, 8, 128)
MOE = FusedMoe(tokens=4096, experts=8, topk=2, hidden=4096, inter=14336, routing="balanced")
PAIRS, MATRIX = 4096 * 2, 4096 * 14336
ROWS = 2 * 64 * 4096  # bytes of 64 rows of 4096 in 16 bits


def moe_bytes(weight: float) -> float:
    """Three matrices of eight experts; inner rows two out, two in, one out, one in; outer rows out and in, and tokens."""
    return weight * 8 * 3 * MATRIX + 2 * PAIRS * 14336 * (2 * 2 + 2) + 2 * (2 * PAIRS * 4096 + 2 * 4096 * 4096)


# call, FLOPs on the tensor cores, bytes through the L2
COUNTED: list[tuple[Call, float, float]] = [
    (Gemm(100, 200, 300), 2 * 100 * 200 * 300, 2 * (100 * 300 + 200 * 300 + 100 * 200)),
    (Gemm(100, 256, 512, dtype="fp8"), 2 * 100 * 256 * 512, 100 * 512 + 256 * 512 + 2 * 100 * 256),
    # x comes in 16 bits, is written in 8 and read again
    (Gemm(100, 256, 512, dtype="fp8", quantize=True), 2 * 100 * 256 * 512, 4 * 100 * 512 + 256 * 512 + 2 * 100 * 256),
    (Gemm(100, 256, 512, dtype="int4"), 2 * 100 * 256 * 512, 2 * 100 * 512 + (33 / 64) * 256 * 512 + 2 * 100 * 256),
    (BatchedGemm(16, 100, 512, 128), 2 * 16 * 100 * 512 * 128, 2 * 16 * (100 * 128 + 512 * 128 + 100 * 512)),
    (PROMPT, 4 * TRI * 32 * 128, 2 * 1000 * (2 * 8 * 128 + 2 * 32 * 128)),
    (replace(PROMPT, causal=False), 4 * 1000**2 * 32 * 128, 2 * 1000 * (2 * 8 * 128 + 2 * 32 * 128)),
    # the first 100 queries see 1 to 100 keys, the others 100
    (replace(PROMPT, window=100), 4 * (5050 + 900 * 100) * 32 * 128, 2 * 1000 * (2 * 8 * 128 + 2 * 32 * 128)),
    (replace(PROMPT, dtype="fp8"), 4 * TRI * 32 * 128, 1000 * (2 * 8 * 128 + (1 + 2) * 32 * 128)),
    (replace(PROMPT, kv_dtype="fp8"), 4 * TRI * 32 * 128, 1000 * (2 * 8 * 128 + 2 * 2 * 32 * 128)),
    (DECODE, 4 * 1200 * 32 * 128, 2 * (1200 * 2 * 8 * 128 + 2 * 2 * 32 * 128)),
    (replace(DECODE, window=100), 4 * 200 * 32 * 128, 2 * (200 * 2 * 8 * 128 + 2 * 2 * 32 * 128)),
    (replace(DECODE, kv_dtype="fp8"), 4 * 1200 * 32 * 128, 1200 * 2 * 8 * 128 + 2 * 2 * 2 * 32 * 128),
    # expanded: heads of 192 score, heads of 128 are summed; K and V of every head
    (Mla((1000,), (1000,), 16, "context"), 2 * TRI * 16 * 320, 2 * 1000 * 16 * 2 * 320),
    # latent: one row of 576 a token serves all heads
    (Mla((1, 1), (500, 700), 16, "generation"), 2 * 1200 * 16 * (576 + 512), 2 * (1200 * 576 + 2 * 16 * (576 + 512))),
    (MOE, 2 * PAIRS * 3 * MATRIX, moe_bytes(2.0)),
    (replace(MOE, dtype="int4"), 2 * PAIRS * 3 * MATRIX, moe_bytes(33 / 64)),
    (replace(MOE, part="w13"), 2 * PAIRS * 2 * MATRIX, 2 * (8 * 2 * MATRIX + 4096 * 4096 + PAIRS * 2 * 14336)),
    (RmsNorm(64, 4096), 0, 2 * ROWS + 2 * 4096),
    (RmsNorm(64, 4096, fused_add=True), 0, 4 * ROWS + 2 * 4096),
    (SiluAndMul(64, 4096), 0, 3 * ROWS),
    (Elementwise(10_000, 20_000), 0, 30_000),
    (all_reduce(8_000_000, 8), 0, 2 * 2 * 7 * 1_000_000),
    (all_gather(8_000_000, 8), 0, 2 * 7 * 1_000_000),
    (reduce_scatter(8_000_000, 8), 0, 2 * 7 * 1_000_000),
    (all_to_all(8_000_000, 8), 0, 2 * 7 * 1_000_000),
    (send_recv(8_000_000), 0, 2 * 8_000_000),
]


def name_of(value: object) -> str | None:
    return value.kernel if isinstance(value, Call) else None


def done(call: Call, gpu: str = "H200", protocol: str = "serving") -> Work:
    return answer_one(call, find(gpu), protocol, "vllm-0.22.1").analysis.done


def test_every_built_in_family_is_held_to_hand_arithmetic() -> None:
    """Operators of stages are held to counts of each stage: `tests/kernels/test_kernel_{recurrent,...}.py`."""
    staged = {"delta_net", "causal_conv1d", "mamba2", "attention_module", "hyper_connection", "mega_moe"}
    copies = {"moe_all_to_all"}
    built_in = set(packaged.shared(FAMILIES))
    assert built_in - staged - copies <= {call.kernel for call, *_ in COUNTED}


@pytest.mark.parametrize(("call", "flops", "moved"), COUNTED, ids=name_of)
def test_work_is_that_of_hand_arithmetic(call: Call, flops: float, moved: float) -> None:
    work = done(call)
    assert float(work.flops[0]) == pytest.approx(flops, rel=1e-9)
    assert float(work.l2[0]) == pytest.approx(moved, rel=2e-3)  # scales of fp8 caches and of blocks


@pytest.mark.parametrize(("call", "flops", "moved"), COUNTED, ids=name_of)
@pytest.mark.parametrize("protocol", ["cold", "serving", "graph", "profiler_warm"])
def test_work_is_never_less_than_the_demand(call: Call, flops: float, moved: float, protocol: str) -> None:
    found = answer_one(call, find("H100"), protocol)
    demand, work = found.analysis.demand, found.analysis.done
    faster = find("H100").peak_flops("fp8") / find("H100").peak_flops("bf16") if work.product == "fp8" else 1.0
    assert float(work.flops[0]) * faster >= float(demand.tensor[0]) * (1 - 1e-9)
    assert float(work.dram[0]) >= float(demand.dram[0]) * 0.95


def test_a_call_alone_and_a_batch_draw_the_same() -> None:
    for call, *_ in COUNTED:
        twice = predict([call, call], "H200", protocol="serving").above_idle_j
        alone = predict([call], "H200", protocol="serving").above_idle_j
        assert twice == pytest.approx([alone[0], alone[0]])
        assert alone[0] > 0


# Long prompts: the published sizes of a layer multiplied out by hand, in this file and nowhere else.
SCORE, VALUE = 128 + 64, 128  # multiply-adds of a query-key pair and head


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model card prints; matrices of a layer in weights, cut by `tp` unless said otherwise."""

    tp: int
    layers: int
    dense_layers: int
    heads: int
    whole: int  # weights of attention that every rank holds: from hidden to the ranks
    cut: int  # weights of attention that ranks share: up to heads, keys and values, out
    dense: int  # weights of a dense feed-forward block
    expert: int  # weights of an expert
    experts: int
    topk: int
    shared: int  # weights of the shared experts
    hidden: int
    vocab: int


SIZES = {
    "DeepSeek-V3": Sizes(
        tp=8, layers=61, dense_layers=3, heads=128, whole=7168 * (1536 + 576),
        cut=1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168, dense=3 * 7168 * 18432, expert=3 * 7168 * 2048,
        experts=256, topk=8, shared=3 * 7168 * 2048, hidden=7168, vocab=129_280,
    ),
    "DeepSeek-V2-Lite": Sizes(
        tp=1, layers=27, dense_layers=1, heads=16, whole=2048 * 576,
        cut=2048 * 16 * 192 + 512 * 16 * 256 + 16 * 128 * 2048, dense=3 * 2048 * 10944, expert=3 * 2048 * 1408,
        experts=64, topk=6, shared=3 * 2048 * 2816, hidden=2048, vocab=102_400,
    ),
}  # fmt: skip


def by_hand(size: Sizes, tokens: int) -> tuple[float, float]:
    """FLOPs of attention, and of everything on the tensor cores, on one rank."""
    pairs = tokens * (tokens + 1) / 2
    attention = 2.0 * pairs * size.heads * (SCORE + VALUE) * size.layers / size.tp
    sparse = size.layers - size.dense_layers
    feed = size.dense_layers * size.dense + sparse * (size.topk * size.expert + size.shared)
    each = size.layers * (size.whole + size.cut / size.tp) + feed / size.tp + sparse * size.hidden * size.experts
    head = 2.0 * size.hidden * size.vocab / size.tp
    return attention, attention + 2.0 * tokens * each + head


def counted(runner: Runner, tokens: int) -> tuple[float, float]:
    """The same as the families' analyses count them, which the energy of a step is made of."""
    attention = everything = 0.0
    for use in runner.deployment.kernels(Batch((tokens,), (tokens,))):
        if isinstance(use.call, Gemm | Mla | FusedMoe):
            found = answer_one(use.call, runner.gpu, "serving", runner.engine.stack)
            flops = use.count * float(found.analysis.done.flops[0])
            everything += flops
            attention += flops * isinstance(use.call, Mla)
    return attention, everything


@pytest.mark.parametrize("model", sorted(SIZES))
def test_flops_of_a_prompt_are_those_of_the_model_card(model: str) -> None:
    """All of 32,768 tokens of DeepSeek-V3 on one of eight ranks: 335 TFLOP of attention and 352 of products."""
    runner = Runner.of(Deployment(load(model), Parallel(SIZES[model].tp)), find("H100"), find_engine("vllm"))
    assert counted(runner, 4096) == pytest.approx(by_hand(SIZES[model], 4096), rel=1e-4)


@pytest.mark.parametrize("model", sorted(SIZES))
def test_long_prompts_of_expanded_heads_hardly_reach_the_power_limit(model: str) -> None:
    """Counted as latent attention they ran into it, which cost 37 % at 32 k tokens and 112 % at 131 k."""
    runner = Runner.of(Deployment(load(model), Parallel(SIZES[model].tp)), find("H100"), find_engine("vllm"))
    steps = runner.steps([Batch((tokens,), (tokens,)) for tokens in (32_768, 131_072)])
    assert np.all(steps.gaps["power_throttling"] < 0.05 * steps.load.kernel_us)


def test_a_longer_prompt_draws_more() -> None:
    runner = Runner.of(Deployment(load("DeepSeek-V3"), Parallel(8)), find("H100"), find_engine("vllm"))
    limited = runner.steps([Batch((n,), (n,)) for n in (1024, 4096, 16_384, 65_536)]).load.at_limit_us
    assert all(2 < later / earlier < 16 for earlier, later in pairwise(limited.tolist()))
    assert np.all(limited > 0)


def test_times_of_loops_that_lasted_are_of_a_board_at_its_limit_already() -> None:
    """An A100 has no rows of calls measured one by one, and none of watts: what replays took is not lengthened again."""
    call = Gemm(8192, 8192, 8192)
    for gpu, bursts in (("A100", False), ("H200", True)):
        found = kernel_latencies([call], find(gpu), find_engine("vllm")).found
        over = board_of(find(gpu)).at_limit_us(found.above_idle_j[0]) / found.latency_us[0]
        assert over > 1.3 if bursts else over == pytest.approx(1.0, rel=0.01)

"""Laws of the fused-MoE formulas, and their lower bound against rows of the public corpus."""

from __future__ import annotations

import os
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipewave.calls.families import FusedMoe
from pipewave.errors import UnsupportedDtype
from pipewave.gpus import find
from pipewave.kernels.base import Analysis, Context
from pipewave.kernels.moe.family import analyse
from pipewave.kernels.moe.routing import layer
from pipewave.kernels.moe.software import blocks, engine, machine, tiling
from pipewave.prediction.api import predict

QWEN = {"tokens": 64, "experts": 128, "topk": 8, "hidden": 2048, "inter": 768, "gated": 1, "tp": 1, "ep": 1}
CORPUS = Path(os.environ.get("PIPEWAVE_DATA") or Path(__file__).resolve().parents[2] / "../shared/data")


def columns(**changes: float) -> dict[str, np.ndarray]:
    return {name: np.array([float(size)]) for name, size in (QWEN | changes).items()}


def context(
    gpu: str = "H200", dtype: str = "bf16", protocol: str = "cold", stack: str = "vllm-0.22.1", **options: object
) -> Context:
    impl = str(options.pop("impl", "triton"))
    return Context(find(gpu), dtype, protocol, stack, impl, tuple({"routing": "random", **options}.items()))


def floor_s(found: Analysis, ctx: Context) -> float:
    return float(found.demand.seconds(ctx.gpu, ctx.dtype).max())


def test_least_arithmetic_is_two_operations_for_each_weight_a_pair_meets() -> None:
    ctx = context(routing="balanced")
    assert analyse(columns(), ctx).demand.tensor[0] == 2 * 64 * 8 * 3 * 2048 * 768


def test_cold_reads_every_active_expert_once() -> None:
    ctx = context(routing="balanced")
    weights, x = 128 * 3 * 2048 * 768 * 2, 64 * 2048 * 2
    assert analyse(columns(), ctx).demand.dram[0] == pytest.approx(weights + x)


def test_the_two_products_are_the_whole_arithmetic() -> None:
    whole, first, second = (analyse(columns(), context(part=part)).demand.tensor for part in ("all", "w13", "w2"))
    assert whole[0] == first[0] + second[0]


def test_ungated_experts_need_two_thirds() -> None:
    gated, plain = (analyse(columns(gated=g), context()).demand.tensor[0] for g in (1, 0))
    assert plain == pytest.approx(gated * 2 / 3)


@pytest.mark.parametrize("size", ["hidden", "inter", "tokens"])
def test_a_larger_layer_never_has_a_lower_bound_below_a_smaller_one(size: str) -> None:
    ctx = context()
    bounds = [floor_s(analyse(columns(**{size: QWEN[size] * factor}), ctx), ctx) for factor in (1, 2, 4)]
    assert bounds == sorted(bounds)


def test_warm_weights_are_never_slower_than_cold_ones() -> None:
    small = columns(experts=8, topk=2, inter=512)
    cold, warm = (analyse(small, context(protocol=protocol)).base_s[0] for protocol in ("cold", "graph"))
    assert warm < cold


def test_a_batch_answers_like_its_calls_alone() -> None:
    tokens = (1, 17, 300, 9000)
    batch = {name: np.full(len(tokens), float(size)) for name, size in QWEN.items()} | {
        "tokens": np.array(tokens, float)
    }
    together = analyse(batch, context())
    for i, count in enumerate(tokens):
        alone = analyse(columns(tokens=count), context())
        assert together.base_s[i] == pytest.approx(alone.base_s[0], rel=1e-12)
        for name, values in alone.features.items():
            assert together.features[name][i] == pytest.approx(values[0], rel=1e-9), name


@pytest.mark.parametrize("gpu", ["V100", "A100", "L4", "H20", "B200", "RTX 5090"])
@pytest.mark.parametrize("tokens", [1, 2**31 - 1])
def test_features_stay_finite_at_the_ends(gpu: str, tokens: int) -> None:
    found = analyse(columns(tokens=tokens, inter=12), context(gpu, dtype="fp16"))
    assert np.isfinite(found.base_s).all()
    assert all(np.isfinite(values).all() for values in found.features.values())


def test_a_given_configuration_replaces_the_rule() -> None:
    config = (("BLOCK_SIZE_K", 64), ("BLOCK_SIZE_M", 32), ("BLOCK_SIZE_N", 256))
    given = blocks(columns(), context(config=config))
    assert (given.rows[0], given.columns[0], given.known) == (32, 256, True)


@pytest.mark.parametrize(
    ("tokens", "size"), [(32, (16, 64)), (64, (32, 64)), (96, (32, 128)), (512, (64, 128)), (513, (128, 128))]
)
def test_vllm_chooses_blocks_by_tokens(tokens: int, size: tuple[int, int]) -> None:
    ruled = blocks(columns(tokens=tokens), context())
    assert (ruled.rows[0], ruled.columns[0]) == size


@pytest.mark.parametrize(
    ("impl", "kind"),
    [
        ("sglang_fused_moe_triton", "triton"),
        ("vllm_fused_moe", "triton"),
        ("vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts", "generated"),
        ("vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "cutlass"),
        ("moe_torch_flow_cutlass", "cutlass"),
        ("moe_torch_flow:mxfp8", "generated"),
        ("sglang_marlin_moe", "marlin"),
        ("vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic", "cutlass"),
    ],
)
def test_engines_by_implementation_name(impl: str, kind: str) -> None:
    assert engine(impl) == kind


@pytest.mark.slow
@pytest.mark.skipif(not (CORPUS / "CLEAN_RULES.json").exists(), reason="needs the public corpus")
def test_hardly_a_row_of_the_corpus_beats_its_lower_bound() -> None:
    pandas, corpus = pytest.importorskip("pandas"), pytest.importorskip("corpus")
    frame = corpus.training_rows("fused_moe", CORPUS)
    frame = frame[(frame["protocol"] == "graph") & (frame["dtype"] == "bf16")].sample(6000, random_state=0)
    keys = ["gpu", "stack", "impl", "routing"]
    beaten = 0
    for (gpu, stack, impl, kind), rows in frame.groupby(keys, observed=True):
        ctx = context(gpu, protocol="graph", stack=stack, impl=impl, routing=kind)
        bound = analyse({name: rows[name].to_numpy(float) for name in QWEN}, ctx).demand.seconds(ctx.gpu, "bf16")
        beaten += int((rows["latency_us"].to_numpy() < 0.97e6 * bound.max(axis=0)).sum())
    assert isinstance(frame, pandas.DataFrame)
    assert beaten <= 0.001 * len(frame)


@pytest.mark.parametrize(("gpu", "share"), [("A100", 1.0), ("H100", 0.5), ("B200", 0.25)])
def test_marlin_keeps_to_the_instructions_of_ampere(gpu: str, share: float) -> None:
    marlin, cutlass = (machine(context(gpu, impl=impl)) for impl in ("sglang_marlin_moe", "moe_torch_flow_cutlass"))
    assert marlin.flops_per_sm / cutlass.flops_per_sm == pytest.approx(share, rel=0.02)


def test_triton_stages_and_multiplies_in_turn() -> None:
    at, work = (make(context(routing="balanced")) for make in (machine, lambda ctx: layer(columns(tokens=8192), ctx)))
    ruled = blocks(columns(tokens=8192), context())
    machines = copy(at), copy(at)
    machines[0].serial, machines[1].serial = True, False
    in_turn, at_once = (tiling(work, each, ruled).ruled.seconds[0] for each in machines)
    assert 1.2 * at_once < in_turn < 3.0 * at_once


@pytest.mark.parametrize(
    ("stack", "dtype", "size"),
    [
        ("sglang-0.5.14", "bf16", (64, 64)),
        ("sglang-0.5.14", "fp8_block", (64, 128)),
        ("vllm-0.14.0", "bf16", (64, 64)),
        ("vllm-0.19.0", "bf16", (128, 128)),
    ],
)
def test_blocks_of_many_tokens_by_stack(stack: str, dtype: str, size: tuple[int, int]) -> None:
    ruled = blocks(columns(tokens=4096), context(stack=stack, dtype=dtype, protocol="graph"))
    assert (ruled.rows[0], ruled.columns[0]) == size


FLASHINFER = "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"


@pytest.mark.parametrize(
    ("gpu", "dtype", "size"),
    [
        ("H100", "bf16", (128, 16)),
        ("H100", "fp8", (128, 16)),
        ("B200", "fp8", (128, 128)),
        ("B200", "nvfp4", (128, 64)),
        ("RTX PRO 6000 Server", "fp8", (32, 128)),
        ("RTX PRO 6000 Server", "nvfp4", (128, 128)),
    ],
)
def test_untuned_kernels_keep_to_the_first_configuration(gpu: str, dtype: str, size: tuple[int, int]) -> None:
    ctx = context(gpu, dtype, impl=FLASHINFER)
    for tokens in (1, 4096):
        ruled = blocks(columns(tokens=tokens), ctx)
        assert (ruled.rows[0], ruled.columns[0], ruled.known) == (*size, True)
    assert analyse(columns(), ctx).features["untuned"][0] == 1


def test_block_scales_have_kernels_of_their_own() -> None:
    ctx = context("H100", "fp8_block", impl=FLASHINFER)
    assert not blocks(columns(), ctx).known
    assert analyse(columns(), ctx).features["untuned"][0] == 0


def test_without_a_cluster_an_operand_serves_one_sm() -> None:
    alone, shared = (machine(context("H100", "fp8", impl=impl)) for impl in (FLASHINFER, "moe_torch_flow_cutlass"))
    assert shared.l2_per_sm / alone.l2_per_sm == pytest.approx(1.45)


def test_sixteen_columns_a_block_read_tokens_over_and_over() -> None:
    slow, fast = (
        analyse(columns(tokens=4096), context("H100", "fp8", impl=impl)).base_s[0]
        for impl in (FLASHINFER, "moe_torch_flow_cutlass")
    )
    assert slow > 2.5 * fast


def test_mxfp4_that_is_widened_on_loading_is_read_as_16_bits() -> None:
    impl, stack = "sglang_fused_moe_triton", "sglang-0.5.14"
    weights = {
        machine(context(gpu, "mxfp4", stack=stack, impl=impl)).weight for gpu in ("L40S", "H100", "RTX PRO 6000 Server")
    }
    assert weights == {2.0}
    assert machine(context("H100", "mxfp4", stack=stack, impl="sglang_marlin_moe")).weight == 0.53125


@pytest.mark.parametrize(
    ("gpu", "dtype", "impl", "widens"),
    [
        ("H100", "int4", "sglang_marlin_moe", True),
        ("B200", "mxfp4", "sglang_flashinfer_trtllm_moe", True),
        ("B200", "mxfp4", "sglang_flashinfer_trtllm_moe:mxfp8", False),
        ("H100", "mxfp4", "sglang_flashinfer_trtllm_moe:mxfp8", True),
        ("L40S", "int4", "moe_torch_flow:w4afp8", True),
        ("L40S", "mxfp4", "sglang_fused_moe_triton", False),
        ("B200", "nvfp4", "sglang_flashinfer_trtllm_moe", False),
        ("RTX PRO 6000 Server", "fp8_block", "moe_torch_flow_triton_fp8_block", True),
    ],
)
def test_weights_are_widened_where_no_tensor_instruction_takes_them(
    gpu: str, dtype: str, impl: str, widens: bool
) -> None:
    ctx = context(gpu, dtype, stack="sglang-0.5.14", impl=impl)
    assert (machine(ctx).widen_s > 0) is widens
    assert analyse(columns(), ctx).features["widens"][0] == widens


def test_four_bit_weights_take_as_long_on_a_card_of_more_bandwidth() -> None:
    """Few tokens of many experts: bf16 weights are read at DRAM's speed, widened ones at that of the SMs."""

    def ratio(dtype: str, impl: str) -> float:
        small, large = (
            analyse(columns(tokens=32), context(gpu, dtype, impl=impl)).base_s[0] for gpu in ("H100", "H200")
        )
        return float(small / large)

    assert ratio("int4", "sglang_marlin_moe") < 1.15 < ratio("bf16", "moe_torch_flow_cutlass")


@pytest.mark.parametrize(
    ("gpu", "impl", "lanes"),
    [("H100", "triton", 2), ("B200", "triton", 3), ("H100", "deepgemm", 2), ("B200", "deepgemm", 0)],
)
def test_block_scales_cost_operations_unless_the_tensor_instruction_applies_them(
    gpu: str, impl: str, lanes: int
) -> None:
    at = machine(context(gpu, "fp8_block", impl=impl))
    assert at.scale_s == pytest.approx(lanes * at.cycle_s / (128 * 128))
    assert machine(context(gpu, "fp8", impl=impl)).scale_s == 0.0


def test_block_scales_weigh_more_where_tensor_cores_are_faster() -> None:
    def longer(gpu: str) -> float:
        scaled, plain = (
            analyse(columns(tokens=65536), context(gpu, dtype, impl="moe_torch_flow_cutlass")).base_s[0]
            for dtype in ("fp8_block", "fp8")
        )
        return float(scaled / plain)

    assert 1.0 < longer("L40S") < longer("H100") < longer("B200") < 3.0


def test_block_scaled_experts_of_workstation_blackwell_multiply_16_bits() -> None:
    ctx = context("RTX PRO 6000 Server", "fp8_block", stack="trtllm-1.3.0rc20", impl="moe_torch_flow_triton_fp8_block")
    at = machine(ctx)
    assert at.weight < 1.01 < at.operand
    assert at.flops_per_sm == machine(context("RTX PRO 6000 Server", "bf16", impl="triton")).flops_per_sm
    assert blocks(columns(), ctx).rows[0] == 16


def test_kernels_for_4_bit_floats_start_more_often() -> None:
    impl = "moe_torch_flow_cutlass"
    fp8, fp4 = (
        analyse(columns(tokens=1, topk=1, experts=8), context("B200", dtype, impl=impl)) for dtype in ("fp8", "nvfp4")
    )
    assert fp4.base_s[0] - fp8.base_s[0] > 10e-6


def test_a_floor_is_of_the_calls_own_type_whatever_the_software_keeps() -> None:
    widened, marlin = (
        analyse(columns(), context("L40S", "mxfp4", stack="sglang-0.5.14", impl=impl)).demand.dram[0]
        for impl in ("sglang_fused_moe_triton", "sglang_marlin_moe")
    )
    assert widened == marlin


def test_packed_pairs_of_other_ranks_fill_blocks_of_one_expert() -> None:
    """Eight tokens of 64 ranks: seven in eight of them elsewhere, in four blocks instead of one for each expert."""
    ctx = context("RTX PRO 6000 Server", "fp8_block", stack="trtllm-1.3.0rc20", impl="moe_torch_flow_triton_fp8_block")
    at, work = machine(ctx), layer(columns(tokens=32, ep=64), ctx)
    ruled = blocks(columns(tokens=32, ep=64), ctx)
    packed = tiling(work, at, ruled).candidates[2].per_sm[0]
    own, elsewhere = work.routing.blocks(np.array([64.0]))[0], work.carried[0] - work.routing.pairs[0]
    assert packed == pytest.approx((own + np.ceil(elsewhere / 64)) * np.ceil(2 * 768 / 128) / at.sms)


def test_narrow_weights_meet_the_16_bit_type_that_a_gpu_has_and_a_refusal_says_which_type_it_lacks() -> None:
    layer = FusedMoe(64, 8, 2, 2048, 1536, dtype="int4")
    found = predict([layer], "T4")
    assert found.floor_us[0] <= found.latency_us[0]
    with pytest.raises(UnsupportedDtype, match="multiply by fp8 activations, which A10 cannot"):
        predict([replace(layer, stack="trtllm-1.3.0rc20")], "A10")

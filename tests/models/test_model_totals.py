"""Known totals: parameters of published checkpoints, and ranks that hold a model between them."""

from __future__ import annotations

import pytest

from pipewave.models import Moe, load, names
from pipewave.models.shard import Parallel, active_parameters, parameters, stage_bytes, weight_bytes

# Parameter totals of the published checkpoints (sum of tensor sizes in their safetensors index or model card).
TOTALS = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Mixtral-8x7B": 46_702_792_704,
    "Mixtral-8x22B": 140_630_071_296,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V2": 235_741_434_880,
    "DeepSeek-V3": 671_026_419_200,
    "Gemma-2-9B": 9_241_705_984,
    "Gemma-2-27B": 27_227_128_320,
    "Gemma-3-1B": 999_885_952,
    "Gemma-3-4B": 4_300_079_472,
    "Gemma-3-27B": 27_432_406_640,
    "Phi-2": 2_779_683_840,
    "Phi-3-mini-4k": 3_821_079_552,
    "Phi-4": 14_659_507_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "GLM-4.5-Air": 106_852_251_264,
    "Command-R": 34_980_831_232,
    "Command-R-Plus": 103_810_674_688,
    "Command-R7B": 8_028_033_024,
    "OLMoE-1B-7B": 6_919_161_856,
    "Phi-3.5-MoE": 41_873_153_344,
    "Mistral-Small-3.1-24B": 24_011_361_280,
}


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_parameters_match_published_checkpoints(name: str, total: int) -> None:
    assert parameters(load(name)) == total


def test_active_parameters_of_moe_models() -> None:
    assert active_parameters(load("Qwen3-30B-A3B")) == pytest.approx(3.35e9, rel=0.01)
    assert active_parameters(load("DeepSeek-V3")) == pytest.approx(37.6e9, rel=0.01)
    assert active_parameters(load("Llama-3.1-8B")) == parameters(load("Llama-3.1-8B"))


@pytest.mark.parametrize("name", names())
def test_bytes_of_an_unquantised_model_are_two_a_parameter(name: str) -> None:
    model = load(name)
    if any(not linear.precision.full for layer in model.layers for linear in layer.linears()):
        pytest.skip("quantised")
    if model.is_moe and any(isinstance(x.ffn, Moe) and not x.ffn.precision.full for x in model.layers):
        pytest.skip("quantised experts")
    # Engines pad the vocabulary to 64 rows; nothing else may differ.
    assert weight_bytes(model) == pytest.approx(2 * parameters(model), rel=1e-3)
    assert weight_bytes(model) >= 2 * parameters(model)


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-20b"])
def test_shards_hold_the_model_between_them(name: str) -> None:
    model = load(name)
    for parallel in (Parallel(2), Parallel(2, 2), Parallel(1, 4), Parallel(4, 1, 2)):
        if parallel.ep > 1 and not model.is_moe:
            continue
        held = sum(stage_bytes(model, parallel, stage) for stage in range(parallel.pp)) * parallel.tp
        assert held >= weight_bytes(model) * 0.999
        assert held <= weight_bytes(model) * 1.2  # what every rank repeats: norms, router, latent projections


def test_the_embedding_is_first_and_the_last_norm_and_head_are_last() -> None:
    """Llama-3.1-8B over four stages of eight layers each."""
    model = load("Llama-3.1-8B")
    first, second, third, last = (stage_bytes(model, Parallel(1, 4), stage) for stage in range(4))
    assert second == third and first + second + third + last == weight_bytes(model)
    table = 2 * model.vocab * model.hidden
    assert (first - second, last - second) == (table, table + 2 * model.hidden)


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"), [(9, 4, [2, 2, 3, 2]), (10, 4, [2, 3, 3, 2]), (11, 4, [3, 3, 3, 2])]
)
def test_layers_left_over_spare_the_last_stage_then_the_first(layers: int, pp: int, sizes: list[int]) -> None:
    """The last stage also has the head, the first the embedding."""
    assert [last - first for first, last in Parallel(1, pp).stages(layers)] == sizes


def test_stages_cover_all_layers_once() -> None:
    for pp in range(1, 9):
        stages = Parallel(1, pp).stages(61)
        assert [first for first, _ in stages[1:]] == [last for _, last in stages[:-1]]
        assert (stages[0][0], stages[-1][1]) == (0, 61)
        assert max(b - a for a, b in stages) - min(b - a for a, b in stages) <= 1

"""Commands that start: only options that the engine has, a model it can load, no FP8 block cut in two."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import pipewave as pw
import pipewave.software
from pipewave.errors import CannotShard
from pipewave.models import load, names
from pipewave.planning import Question, Space, Split, plan
from pipewave.planning.launch import check_blocks, command, repository
from pipewave.software import engine_rules
from pipewave.step import find_engine

FLAGS = Path(pipewave.software.__file__).with_name("flags")
RECORDED = sorted(FLAGS.glob("*.txt"))
SPLITS = [
    Split("H100"),
    Split("H100", tp=8, ep=8, kv_dtype="fp8"),
    Split("B200", tp=4, pp=2),
]


def options(path: Path) -> set[str]:
    return {line for line in path.read_text().splitlines() if line.startswith("--")}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_every_printed_option_is_one_the_engine_has(path: Path, split: Split) -> None:
    engine, _, _ = path.stem.partition("-")
    used = Split(split.gpu, split.tp, split.pp, split.ep, split.kv_dtype, engine)
    words = shlex.split(command("Llama-3.1-8B", used, 64, 8192, length=5000))
    assert {word for word in words if word.startswith("--")} <= options(path)


def test_every_engine_has_a_recorded_list() -> None:
    assert {path.stem.partition("-")[0] for path in RECORDED} == set(engine_rules.NAMES)
    assert min(len(options(path)) for path in RECORDED) > 15


def test_every_built_in_model_has_a_repository() -> None:
    for name in names():
        owner, _, rest = repository(name).partition("/")
        assert owner and rest and " " not in rest, name
    assert repository("deepseek-ai--DeepSeek-R1") == "deepseek-ai/DeepSeek-R1"
    assert repository("/models/mine") == "/models/mine"


@pytest.mark.slow
@pytest.mark.parametrize("engine", engine_rules.NAMES)
def test_a_plan_prints_a_command_whose_lengths_fit_the_cache(engine: str) -> None:
    found = plan(
        load("Llama-3.1-8B"), Question(1000, 200), Space(("H100",), (1,), engines=(engine,), disaggregated=False)
    )
    assert found.winner is not None
    words = shlex.split(found.launch(found.winner))
    length = int(
        words[words.index({"vllm": "--max-model-len", "sglang": "--context-length"}.get(engine, "--max_seq_len")) + 1]
    )
    assert 1200 * 1.5 <= length <= 1200 * 1.5 + 128
    assert "meta-llama/Llama-3.1-8B-Instruct" in words


@pytest.mark.parametrize(("asked", "printed"), [(1, 64), (64, 64), (65, 128), (1200, 1216)])
@pytest.mark.parametrize("engine", engine_rules.NAMES)
def test_the_length_of_a_server_is_never_below_what_is_asked(engine: str, asked: int, printed: int) -> None:
    line = command("Llama-3.1-8B", Split("H100", engine=engine), 8, 2048, length=asked, engine=find_engine(engine))
    assert str(printed) in shlex.split(line.partition(" <(")[0])


def fp8_experts(width: int) -> dict[str, object]:
    """A small mixture of experts with block-scaled FP8 weights."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "vocab_size": 32000,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": width, "num_experts": 64, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "tie_word_embeddings": False,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    }  # fmt: skip


@pytest.mark.slow
def test_a_split_that_cuts_a_block_is_refused_with_the_way_out() -> None:
    model = load(fp8_experts(1536))
    check_blocks(model, Split("H100", tp=4))
    check_blocks(model, Split("H100", tp=8, ep=8))
    with pytest.raises(CannotShard, match=r"192, no multiple of the 128.*expert parallelism"):
        check_blocks(model, Split("H100", tp=8))
    found = plan(model, Question(512, 64), Space(("H100",), (8,), engines=("vllm",), disaggregated=False))
    assert {look.split.ep for look in found.looked if not look.refused} == {8}


def test_a_release_that_goes_by_another_models_sizes_is_launched_itself() -> None:
    asked = {"input_len": 512, "output_len": 64, "ttft_ms": 2000, "rate": 1, "engines": ("vllm",), "tps": (1,)}
    for model in ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"):
        found = pw.plan(model, "H200", **asked)
        line = found.launch(found.winner)
        assert found.model == "Qwen3-30B-A3B" and f" {repository(model)} " in line

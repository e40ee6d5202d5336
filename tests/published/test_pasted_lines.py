"""Server commands as model cards, blog posts and shells have them."""

from __future__ import annotations

from typing import Any

import pytest

from pipewave.errors import BadInput, UnknownModel
from pipewave.models import load
from pipewave.planning.launch import command
from pipewave.planning.manifests import Pool, render
from pipewave.planning.space import Split
from pipewave.published.server_command import read
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("pip install vllm && vllm serve Qwen/Qwen3-8B --port 8000 &", {}),
        ("vllm serve Qwen/Qwen3-8B -tp 2; sleep 60 && vllm bench serve --num-prompts 9 --max-num-seqs 3", {"tp": 2}),
        ("nohup vllm serve Qwen/Qwen3-8B -tp 2 > log 2>&1 &", {"tp": 2}),
        ("vllm serve Qwen/Qwen3-8B -tp 2 | tee log --append", {"tp": 2}),
        ("python -m dynamo.vllm --model Qwen/Qwen3-0.6B --tensor-parallel-size 2", {"tp": 2}),
        ("python3 -m dynamo.sglang --model-path Qwen/Qwen3-0.6B --tp 2", {"engine": "sglang", "tp": 2}),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp-size 4 --speculative-algo NEXTN "
         "--speculative-num-steps 3", {"engine": "sglang", "tp": 4, "speculative": of("nextn,tokens=3")}),
        ("vllm serve Qwen/Qwen3-8B --tensor-parallel=2", {"tp": 2}),
        ("ssh node 'vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2'", {"tp": 2}),
        ("docker run --gpus all vllm/vllm-openai:v0.12.0 bash -c 'vllm serve Qwen/Qwen3-8B -tp 2'",
         {"engine": "vllm:0.12.0", "tp": 2}),
        ("""kubectl exec x -- bash -lc "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2" """,
         {"engine": "sglang", "tp": 2}),
    ],
)  # fmt: skip
def test_what_shells_and_short_names_leave(line: str, changes: dict[str, Any]) -> None:
    found = read(line)
    assert found.setup == Setup(**{"engine": "vllm"} | changes)
    assert not any("no option that is known" in note for note in found.notes)


@pytest.mark.parametrize("form", ["shell", "docker", "kubernetes", "dynamo"])
def test_what_a_plan_prints_is_read_back(form: str) -> None:
    """A line of ours in quotes was told to have no model."""
    split = Split("H200", tp=2, engine="vllm:0.22.1")
    line = command("Qwen/Qwen3-8B", split, 64, 4096)
    found = read(render(form, "vllm", "0.22.1", [Pool("server", 1, 2, line)]))
    assert (found.setup.tp, found.setup.max_num_seqs, found.setup.max_num_batched_tokens) == (2, 64, 4096)
    assert found.version == ("0.22.1" if form in ("docker", "kubernetes") else None)


def test_a_name_that_several_options_begin_with_is_not_guessed() -> None:
    assert read("vllm serve Qwen3-0.6B --max-num 9").setup == Setup(engine="vllm")
    with pytest.raises(BadInput, match="did you mean --tp_size"):
        read("trtllm-serve Qwen3-0.6B --tp_siz 2")  # click takes no short names


@pytest.mark.parametrize("model", ["Qwen3-4B-Instruct", "Qwen3-30B-A3B-Thinking", "Qwen3-235B-A22B-Instruct"])
def test_a_release_for_longer_contexts_takes_its_own_card_s_command(model: str) -> None:
    """They were refused beyond the 40,960 tokens of the model that they were tuned from."""
    for name in (f"Qwen/{model}-2507", f"Qwen/{model}-2507-FP8"):
        if "4B-" in name and name.endswith("FP8"):
            continue  # no FP8 checkpoint of its shape is built in
        assert read(f"vllm serve {name} --max-model-len 262144").spec.max_length == 262_144
    assert load(model.rsplit("-", 1)[0]).max_length == 40_960


@pytest.mark.parametrize("option", ["--rope-scaling", "--hf-overrides"])
def test_a_context_that_is_stretched_may_be_longer(option: str) -> None:
    scaling = """'{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'"""
    with pytest.raises(BadInput, match="at most the model's 40,960"):
        read("vllm serve Qwen/Qwen3-8B --max-model-len 131072")
    assert read(f"vllm serve Qwen/Qwen3-8B {option} {scaling} --max-model-len 131072").setup == Setup(engine="vllm")


@pytest.mark.parametrize(
    "line",
    ["vllm serve Qwen3-0.6B --config serve.yaml", "python -m sglang.launch_server --model Qwen3-0.6B --config serve.yaml",
     "trtllm-serve Qwen3-0.6B --extra_llm_api_options extra.yaml", "trtllm-serve Qwen3-0.6B --config extra.yaml"],
)  # fmt: skip
def test_files_that_are_not_read_are_told(line: str) -> None:
    assert any("its file is not read; say its settings as options" in note for note in read(line).notes)


def test_which_node_a_line_is_of_is_not_told_as_left_out() -> None:
    """Two nodes of eight are what tp 16 says."""
    line = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 0"
    assert read(line).notes == ("without effect on times: --nnodes, --node-rank",)


@pytest.mark.parametrize(
    ("name", "says"),
    [("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "did you mean Llama-3.3-70B?"),
     ("unsloth/Qwen3-30B-A3B-bnb-4bit", "did you mean Qwen3-30B-A3B?")],
)  # fmt: skip
def test_a_checkpoint_that_is_not_listed_names_the_model_that_it_is_of(name: str, says: str) -> None:
    """They were told that no Llama is built in."""
    with pytest.raises(UnknownModel) as told:
        load(name)
    assert says in told.value.message and "none is built in" not in told.value.message

"""Every word that starts an engine, and every line of what a cluster is told, by hand."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pipewave.errors import BadInput, CannotShard
from pipewave.models import load
from pipewave.models.load import check_online
from pipewave.planning import Question, Split, run
from pipewave.planning.launch import check_blocks, command, pools, repository
from pipewave.planning.manifests import NVIDIA, Pool, engine_words, platform_of, product, render
from pipewave.planning.run import Point, command_line, side, stated
from pipewave.simulate.pools import side_of
from pipewave.step import find_engine

QUESTION, MODEL = Question(1000, 100), load("Llama-3.1-8B")
META = "meta-llama/Llama-3.1-8B-Instruct"
SHARE = {name: f"{find_engine(name).memory.memory_share:g}" for name in ("vllm", "sglang", "trtllm")}


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (Split("H100", engine="vllm"), f"vllm serve {META} --tensor-parallel-size 1 --max-num-seqs 64 "
         f"--max-num-batched-tokens 2048 --gpu-memory-utilization {SHARE['vllm']}"),
        (Split("H100", 2, 2, 8, "fp8", "vllm", 4), f"vllm serve {META} --tensor-parallel-size 2 --pipeline-parallel-size 2 "
         f"--enable-expert-parallel --max-num-seqs 16 --max-num-batched-tokens 2048 --gpu-memory-utilization {SHARE['vllm']} "
         "--kv-cache-dtype fp8 --data-parallel-size 4"),
        (Split("H100", 2, 2, 8, "fp8", "sglang", 4), f"python -m sglang.launch_server --model-path {META} --tp-size 8 --pp-size 2 "
         f"--ep-size 8 --max-running-requests 64 --chunked-prefill-size 2048 --mem-fraction-static {SHARE['sglang']} "
         "--kv-cache-dtype fp8_e4m3 --dp-size 4 --enable-dp-attention"),
        (Split("H100", 2, 2, 8, None, "trtllm", 4), f"trtllm-serve serve {META} --backend pytorch --tp_size 8 --pp_size 2 --ep_size 8 "
         f"--max_batch_size 16 --max_num_tokens 2048 --kv_cache_free_gpu_memory_fraction {SHARE['trtllm']} "
         "--extra_llm_api_options <(printf '%s\\n' 'enable_attention_dp: true')"),
        (Split("H100", engine="sglang", kv_dtype="bf16", weights="fp8"), f"python -m sglang.launch_server --model-path {META} --tp-size 1 "
         f"--max-running-requests 64 --chunked-prefill-size 2048 --mem-fraction-static {SHARE['sglang']} --quantization fp8"),
    ],
)  # fmt: skip
def test_the_words_that_start_an_engine(split: Split, said: str) -> None:
    assert command("Llama-3.1-8B", split, 64, 2048) == said


def test_requests_of_a_rank_are_rounded_up() -> None:
    line = command("m", Split("H100", ep=4, dp=4, engine="vllm"), 65, 2048)
    assert "--max-num-seqs 17 " in line and "--model-len" not in line
    shared = replace(find_engine("vllm"), memory=replace(find_engine("vllm").memory, memory_share=0.123))
    assert "--gpu-memory-utilization 0.123" in command("m", Split("H100", engine="vllm"), 65, 2048, engine=shared)


@pytest.mark.parametrize(
    ("engine", "drafts", "words"),
    [
        ("sglang", "method=mtp,tokens=3", "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 4"),
        ("sglang", "method=ngram,tokens=5", "--speculative-algorithm NGRAM --speculative-num-steps 5 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 6"),
        ("vllm", "method=mtp,tokens=2", '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\''),
        ("trtllm", "method=mtp,tokens=2", "--extra_llm_api_options <(printf '%s\\n' speculative_config: "
         "'  decoding_type: MTP' '  num_nextn_predict_layers: 2')"),
        ("trtllm", "method=ngram,tokens=2", "--extra_llm_api_options <(printf '%s\\n' speculative_config: "
         "'  decoding_type: NGram' '  max_draft_len: 2')"),
    ],
)  # fmt: skip
def test_drafts_in_the_words_of_an_engine(engine: str, drafts: str, words: str) -> None:
    split = Split("H100", engine=engine, speculative=drafts)
    assert command("m", split, 8, 2048).endswith(words)
    assert words not in command("m", split, 8, 2048, role="prefill"), "engines of prompts do not draft"
    assert words.partition("<(")[0] in command("m", split, 8, 2048, role="decode")


def test_a_draft_model_is_named() -> None:
    split = Split("H100", engine="vllm", speculative="method=eagle3,tokens=2,model=a/b")
    words = shlex.split(command("m", split, 8, 2048))
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {"method": "eagle3", "num_speculative_tokens": 2, "model": "a/b"}


def test_pools_share_the_requests_of_all() -> None:
    split = Split("H200", tp=2, pp=2, engine="vllm", prefill=Split("H100", tp=4, engine="vllm"), workers=(5, 3))
    first, then = pools("m", split, 100, 2048, length=100, engine=find_engine("vllm"))
    assert (first.role, first.engines, first.gpus, then.role, then.engines, then.gpus) == (
        "prefill",
        5,
        4,
        "decode",
        3,
        4,
    )
    shell = render("shell", "vllm", "0.22.1", [first, then])
    assert "# 5 × prefill, 4 H100 each" in shell and "# 3 × decode, 4 H200 each" in shell
    for pool in (first, then):
        words = shlex.split(pool.command)
        assert words[words.index("--max-num-seqs") + 1] == "34" and words[words.index("--max-model-len") + 1] == "128"
        assert json.loads(words[words.index("--kv-transfer-config") + 1]) == {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
        }
    (one,) = pools(
        "m", Split("H200", tp=2, pp=2, engine="sglang"), 100, 2048, length=None, engine=find_engine("sglang")
    )
    assert (one.role, one.engines, one.gpus) == ("server", 1, 4) and "--max-running-requests 100 " in one.command
    assert "--context-length" not in one.command and "--disaggregation-mode" not in one.command
    apart = pools("m", replace(split, engine="sglang", prefill=replace(split.prefill, engine="sglang")), 9, 2048, length=1,  # type: ignore[type-var]
                  engine=find_engine("sglang"))  # fmt: skip
    assert [
        "--disaggregation-mode prefill" in apart[0].command,
        "--disaggregation-mode decode" in apart[1].command,
    ] == [True] * 2


def test_repositories_and_names_of_folders() -> None:
    assert repository("a--b--c") == "a/b--c" and repository("Llama-3.1-8B") == META


def block(**widths: Any) -> Any:
    def fp8(**more: Any) -> Any:
        return SimpleNamespace(precision=SimpleNamespace(dtype="fp8_block"), **more)

    moes = [fp8(inter=widths["experts"])] if "experts" in widths else []
    return SimpleNamespace(grouped=lambda: [(SimpleNamespace(moes=moes, ffns=widths.get("ffns", ())), 1)])


def test_a_block_of_scales_is_not_cut() -> None:
    check_blocks(block(experts=1024), Split("H100", tp=8))
    check_blocks(block(experts=1152), Split("H100", tp=8, ep=8))
    with pytest.raises(CannotShard, match="expert width 1100 over 1 GPUs leaves 1100, no multiple of the 128") as told:
        check_blocks(block(experts=1100), Split("H100", tp=8, ep=8))
    assert told.value.field == "ep"
    with pytest.raises(CannotShard, match=r"expert width 1024 over 16 GPUs leaves 64, .*expert parallelism"):
        check_blocks(block(experts=1024), Split("H100", tp=16))
    dense = load("Qwen3-32B", online="fp8_block")
    check_blocks(dense, Split("H100", tp=8))
    with pytest.raises(
        CannotShard, match=r"intermediate size 25600 over 16 GPUs leaves 1600, .*use fewer GPUs"
    ) as told:
        check_blocks(dense, Split("H100", tp=16))
    assert told.value.field == "tp"


def test_weights_that_an_engine_makes_while_it_loads() -> None:
    for engine in ("vllm", "sglang"):
        check_online("fp8", engine)
    check_online("o/awq", "trtllm")
    with pytest.raises(BadInput, match="trtllm does not quantise") as told:
        check_online("fp8", "trtllm")
    assert told.value.field == "quantize"


POOLS = [Pool("prefill", 2, 1, "vllm serve m --seqs 8"), Pool("decode", 1, 4, "vllm serve m -tp 4")]


def test_what_docker_is_told() -> None:
    _, first, _, second = render("docker", "vllm", "9.8", POOLS).splitlines()
    cache = "/root/.cache/huggingface"
    shared = (
        f"--ipc=host --ulimit memlock=-1 -p 8000:8000 -v {cache}:{cache} --entrypoint bash vllm/vllm-openai:v9.8 -c"
    )
    assert first == f"docker run --rm --gpus 1 {shared} 'vllm serve m --seqs 8'"
    assert second == f"docker run --rm --gpus 4 {shared} 'vllm serve m -tp 4'"
    amd = platform_of("MI300X", "sglang")
    line = render("docker", "sglang", "9.8", POOLS[:1], amd)
    devices = "--device /dev/kfd --device /dev/dri --group-add video --security-opt seccomp=unconfined"
    assert line.startswith(f"docker run --rm {devices} --ipc=host") and "-p 30000:30000" in line
    assert " lmsysorg/sglang:v9.8-rocm720-mi30x -c " in line and amd.words == ["SGLANG_USE_AITER=1"]
    assert platform_of("H100", "trtllm") == NVIDIA and engine_words("trtllm")["port"] == 8000
    shell = "# 2 × prefill, 1 GPUs each\nvllm serve m --seqs 8\n# 1 × decode, 4 GPUs each\nvllm serve m -tp 4"
    assert (
        render("shell", "vllm", "9.8", POOLS) == shell and render("shell", "vllm", "9.8", POOLS[1:]) == POOLS[1].command
    )


@pytest.mark.parametrize("form", ["docker", "kubernetes", "dynamo"])
def test_pools_on_different_gpus_say_which_runs_where(form: str) -> None:
    """Kubernetes would put prompts' pods on any GPU of a cluster with both."""
    mixed = [replace(pool, gpu=gpu) for pool, gpu in zip(POOLS, ("H200", "L40S"), strict=True)]
    text, alike = (render(form, "vllm", "9.8", pools) for pools in (mixed, POOLS))
    assert "# 2 × prefill, 1 H200 each\n" in text and "# 1 × decode, 4 L40S each\n" in text
    assert ("nvidia.com/gpu.product" in text) == (form != "docker") and "gpu.product" not in alike
    if form != "docker":
        label = "        nvidia.com/gpu.product: NVIDIA-"
        assert [line.partition(label)[2] for line in text.splitlines() if label in line] == ["H200", "L40S"]
        without = re.sub(r"\n *nodeSelector:\n *nvidia.com/gpu.product: \S+", "", text)
        assert list(yaml.safe_load_all(without)) == list(yaml.safe_load_all(alike))


@pytest.mark.parametrize(
    ("gpu", "label"),
    [("H100", "NVIDIA-H100-80GB-HBM3"), ("A100", "NVIDIA-A100-SXM4-80GB"), ("T4", "Tesla-T4"), ("L4", "NVIDIA-L4")],
)
def test_labels_of_nodes_are_names_of_boards(gpu: str, label: str) -> None:
    assert product(gpu) == label


def test_what_kubernetes_is_told() -> None:
    amd = platform_of("MI355X", "vllm")
    (found,) = yaml.safe_load_all(render("kubernetes", "vllm", "9.8", POOLS[1:], amd))
    labels = {"app": "vllm-decode"}
    container = {
        "name": "vllm", "image": "vllm/vllm-openai-rocm:v9.8", "command": ["bash", "-c", "vllm serve m -tp 4"],
        "ports": [{"containerPort": 8000}], "resources": {"limits": {"amd.com/gpu": 4}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    assert found == {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "vllm-decode"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}}},
    }  # fmt: skip


def test_what_dynamo_is_told() -> None:
    server = Pool("server", 3, 2, "python -m sglang.launch_server --model-path m --tp-size 2")
    (found,) = yaml.safe_load_all(render("dynamo", "sglang", "9.8", [server]))
    image = {"image": "nvcr.io/nvidia/ai-dynamo/sglang-runtime"}
    front = {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": image}}
    args = ["python3 -m dynamo.sglang --model-path m --tp-size 2"]
    worker = {"componentType": "worker", "replicas": 3, "resources": {"limits": {"gpu": "2"}},
              "extraPodSpec": {"mainContainer": {**image, "command": ["bash", "-c"], "args": args}}}  # fmt: skip
    assert found == {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": "sglang-plan"},
                     "spec": {"services": {"Frontend": front, "ServerWorker": worker}}}  # fmt: skip
    both = yaml.safe_load(render("dynamo", "vllm", "9.8", POOLS))["spec"]["services"]
    assert [both[f"{role}Worker"]["subComponentType"] for role in ("Prefill", "Decode")] == ["prefill", "decode"]
    ranks = Pool("server", 1, 8, command("m", Split("H200", ep=8, dp=8, engine="trtllm"), 8, 2048))
    line = yaml.safe_load(render("dynamo", "trtllm", "9.8", [ranks]))["spec"]["services"]["ServerWorker"]
    assert line["extraPodSpec"]["mainContainer"]["args"][0].startswith(
        "python3 -m dynamo.trtllm --model-path m --backend pytorch"
    )
    with pytest.raises(BadInput, match="NVIDIA") as told:
        render("dynamo", "vllm", "9.8", POOLS, platform_of("MI300X", "vllm"))
    assert told.value.field == "form"
    with pytest.raises(BadInput, match="it does not run on MI300X") as told:
        platform_of("MI300X", "trtllm")
    assert told.value.field == "engine"


def test_a_design_as_a_deployment() -> None:
    split = Split("H200", 2, 2, 4, "fp8", "vllm", 2, "method=mtp,tokens=1", max_num_seqs=9, max_num_batched_tokens=512)
    told = stated(MODEL, replace(split, power_limit_w=500.0), QUESTION, 3)
    setup = told.setup
    assert (setup.tp, setup.pp, setup.ep, setup.dp, setup.max_num_seqs, setup.max_num_batched_tokens) == (
        2,
        2,
        4,
        2,
        9,
        512,
    )
    assert (setup.kv_dtype, setup.replicas, setup.speculative.tokens, told.gpus) == ("fp8", 3, 1, 4)
    assert (told.engine, told.gpu.tdp_w, told.pools) == ("vllm", 500.0, None) and stated(
        MODEL, split, QUESTION
    ).setup.replicas == 1
    one = side(split, 7)
    assert (one.workers, one.tp, one.pp, one.ep, one.dp, one.max_num_seqs, one.max_num_batched_tokens) == (
        7,
        2,
        2,
        4,
        2,
        9,
        512,
    )
    assert one.gpu is not None and one.gpu.name == "H200"
    apart = stated(MODEL, replace(split, prefill=Split("H100", engine="vllm"), workers=(1, 2)), QUESTION, 3)
    assert apart.setup.replicas == 1 and [s.workers for s in apart.pools or () if s] == [3, 6] and apart.gpus == 4


def test_every_option_of_the_line_that_serves_a_design() -> None:
    point = Point(0.1 + 0.2, 3, 320, {}, 0.0, 0.0, 8, 2048)
    split = Split(
        "H100",
        1,
        1,
        1,
        "fp8",
        "vllm",
        1,
        "mtp,tokens=1",
        max_num_seqs=9,
        max_num_batched_tokens=512,
        power_limit_w=400.0,
    )
    question = Question(1000, 100, prefix_share=0.25, spread=0.1)
    assert command_line("M", split, question, point) == (
        "pipewave serve --model M --gpu H100 --engine vllm --replicas 3 --max-num-seqs 9 --max-num-batched-tokens 512 "
        "--kv-cache-dtype fp8 --power-limit 400 --speculative mtp,tokens=1 --prefix-share 0.25 --isl 1000 --osl 100 "
        "--spread 0.1 --request-rate 0.30000000000000004 --requests 320 --steady"
    )
    apart = Split("H200", engine="vllm", prefill=Split("H100", engine="vllm"), workers=(2, 1))
    line = command_line("M", apart, QUESTION, point)
    assert " --prefill workers=6,gpu=H100 --decode workers=3,gpu=H200 --isl" in line and "--replicas" not in line
    limited = replace(apart, max_num_seqs=1, prefill=replace(apart.prefill or apart, max_num_batched_tokens=512))
    words = shlex.split(command_line("M", limited, QUESTION, point))
    for name, one, workers in (("prefill", limited.prefill or limited, 6), ("decode", limited, 3)):
        told = side_of(words[words.index(f"--{name}") + 1], name)
        assert told == replace(side(one, workers), gpu=one.gpu), "the pools of the line are those that were run"
    assert command_line("M", replace(apart, power_limit_w=400.0), QUESTION, point) == ""
    capped = replace(apart, prefill=Split("H100", engine="vllm", power_limit_w=400.0))
    assert command_line("M", capped, QUESTION, point) == ""
    assert command_line("M", replace(apart, weights="w"), QUESTION, point) == line.replace(
        " --isl", " --quantize w --isl"
    )
    recorded = replace(QUESTION, recorded=QUESTION.traffic(3, 1.0))
    assert command_line("M", split, recorded, point) == ""
    long = command_line("M", Split("H100", engine="trtllm"), Question(10_000, 1, spread=0.0), point)
    assert (
        "--max-num-batched-tokens 16384" in long
        and run.budget_of(Split("H100", engine="vllm"), Question(99_999, 1)) is None
    )
    assert run.budget_of(Split("H100", engine="trtllm", max_num_batched_tokens=100), Question(10_000, 1)) == 100

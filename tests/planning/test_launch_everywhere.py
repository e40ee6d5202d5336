"""Launch commands of 20 models on 6 GPUs: recorded options only, splits that the engine can start, lengths that fit.

The arithmetic is done again here from the model's own counts, not by the planner.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

import pipewave.software
from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.shard import Parallel, cache_bytes, state_bytes, weight_bytes
from pipewave.planning import Plan, Question, Space, Split, plan
from pipewave.planning.launch import command, pools
from pipewave.planning.manifests import FORMS, Pool, render
from pipewave.step import find_engine

FLAGS = Path(pipewave.software.__file__).with_name("flags")
GPUS = ("A100", "L40S", "H100", "H200", "B200", "GB200")
MODELS = (
    "Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.1-405B", "Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B",
    "Qwen3-14B", "Qwen3-32B", "Qwen3-30B-A3B", "Qwen3-235B-A22B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-72B", "gpt-oss-20b",
    "gpt-oss-120b", "DeepSeek-V3", "Mixtral-8x7B", "Mistral-7B-v0.3",
)  # fmt: skip
ENGINES = {"vllm": "vllm-0.22.1.txt", "sglang": "sglang-0.5.14.txt", "trtllm": "trtllm-1.0.0.txt"}
NUMBERS = {
    "tp": ("--tensor-parallel-size", "--tp-size", "--tp_size"), "dp": ("--data-parallel-size", "--dp-size"),
    "seqs": ("--max-num-seqs", "--max-running-requests", "--max_batch_size"),
    "length": ("--max-model-len", "--context-length", "--max_seq_len"), "ep": ("--ep-size", "--ep_size"),
    "share": ("--gpu-memory-utilization", "--mem-fraction-static", "--kv_cache_free_gpu_memory_fraction"),
}  # fmt: skip


def _options(engine: str) -> set[str]:
    return {line for line in (FLAGS / ENGINES[engine]).read_text().splitlines() if line.startswith("--")}


def _numbers(line: str) -> dict[str, float]:
    words = shlex.split(line.partition(" <(")[0])
    return {name: float(words[words.index(w) + 1]) for name, known in NUMBERS.items() for w in known if w in words}


def _plan(model: str, gpu: str, engine: str) -> Plan:
    dps = (1, 4) if load(model).is_moe else (1,)
    space = Space(
        (gpu,),
        (2, 8),
        engines=(engine,),
        budgets=(4096,),
        dps=dps,
        gpus_most=8,
        speculative=(None,),
        disaggregated=False,
    )
    return plan(load(model), Question(1000, 200), space)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "part"), [(model, at % 4) for at, model in enumerate(MODELS)])
def test_commands_pass_the_argument_lists_and_the_arithmetic(model: str, part: int) -> None:
    """Every fourth GPU with an engine in turn, so that each GPU meets each engine over the models; those that no split
    of eight fits print no command.
    """
    spec, printed = load(model), 0
    for number, gpu in list(enumerate(GPUS))[part::4]:
        engine = list(ENGINES)[(number + MODELS.index(model)) % 3]
        found = _plan(model, gpu, engine)
        if found.winner is None:
            continue
        printed += 1
        line, row = found.launch(found.winner), found.winner.row(found.question)
        words = shlex.split(line.partition(" <(")[0])
        assert {word for word in words if word.startswith("--")} <= _options(engine), line
        said, (tp, dp) = _numbers(line), (row["tp"], row["dp"])
        assert said["tp"] == (tp if engine == "vllm" else tp * dp)
        assert said.get("dp", 1) == (dp if engine != "trtllm" else 1)
        assert ("enable_attention_dp" in line) == (engine == "trtllm" and dp > 1)
        heads = spec.layers[-1].mixer
        assert getattr(heads, "heads", tp) % tp == 0
        assumed = any("FP8 cache assumed" in note for note in found.winner.fleet.point.notes)
        split = Parallel(tp=tp, ep=row["ep"], dp=dp)
        each = cache_bytes(spec, int(said["length"]), split, "fp8" if assumed else None) + state_bytes(
            spec, Parallel(tp=tp)
        )
        seqs = said["seqs"] / (dp if engine == "sglang" else 1)  # SGLang's is of all ranks
        weights = weight_bytes(spec, Parallel(tp=tp, ep=row["ep"], dp=dp))
        length = 1200 / said["length"]  # what the question asks of the length that the server takes at most
        assert weights + length * seqs * each < find(gpu).dram_gib * 2**30, line
        assert said["length"] <= (spec.max_length or said["length"])
    assert printed >= (0 if "405B" in model or "V3" in model else 1)


WIDE = Split("H200", ep=8, dp=8, speculative="mtp,tokens=2")


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_and_drafts_in_each_engines_words(engine: str) -> None:
    line = command("DeepSeek-V3", Split(WIDE.gpu, 1, 1, 8, None, engine, 8, WIDE.speculative), 256, 4096, length=4096)
    words = shlex.split(line.partition(" <(")[0])
    assert {word for word in words if word.startswith("--")} <= _options(engine)
    said = _numbers(line)
    if engine == "vllm":
        assert (said["tp"], said["dp"], said["seqs"]) == (1, 8, 32)
        assert '"num_speculative_tokens": 2' in line
    if engine == "sglang":
        assert (said["tp"], said["dp"], said["seqs"]) == (8, 8, 256)
        assert {"--enable-dp-attention", "NEXTN"} <= set(words)
    if engine == "trtllm":
        text = re.search(r"<\(printf '%s\\n' (.*)\)", line)
        assert text is not None
        told = yaml.safe_load("\n".join(shlex.split(text.group(1))))
        assert told == {
            "enable_attention_dp": True,
            "speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 2},
        }


@pytest.mark.parametrize("engine", ENGINES)
def test_pools_apart_are_two_commands(engine: str) -> None:
    split = Split("H200", tp=4, engine=engine, prefill=Split("H200", tp=2, engine=engine), workers=(3, 2))
    found = pools("Llama-3.1-70B", split, 128, 4096, length=4096, engine=find_engine(engine))
    assert [(pool.role, pool.engines, pool.gpus) for pool in found] == [("prefill", 3, 2), ("decode", 2, 4)]
    assert _numbers(found[1].command)["seqs"] == 64
    for pool in found:
        words = shlex.split(pool.command.partition(" <(")[0])
        assert {word for word in words if word.startswith("--")} <= _options(engine)
    assert split.gpus == 14


POOLS = [Pool("prefill", 2, 1, "vllm serve m --max-num-seqs 8"), Pool("decode", 1, 4, "vllm serve m -tp 4")]


def test_forms_hold_what_the_pools_are() -> None:
    assert render("shell", "vllm", "0.22.1", POOLS[:1]) == POOLS[0].command
    assert "# 2 × prefill, 1 GPUs each" in render("shell", "vllm", "0.22.1", POOLS)
    line = shlex.split(render("docker", "vllm", "0.22.1", POOLS[1:]))
    assert line[line.index("--gpus") + 1] == "4"
    assert line[-1] == POOLS[1].command
    assert "vllm/vllm-openai:v0.22.1" in line
    text = render("kubernetes", "vllm", "0.22.1", POOLS)
    assert "&" not in text and "*" not in text  # no anchors: people read it
    first, second = yaml.safe_load_all(text)
    assert (first["spec"]["replicas"], second["spec"]["replicas"]) == (2, 1)
    container = second["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert container["command"][-1] == POOLS[1].command
    graph = yaml.safe_load(render("dynamo", "vllm", "0.22.1", POOLS))
    services = graph["spec"]["services"]
    assert set(services) == {"Frontend", "PrefillWorker", "DecodeWorker"}
    assert services["PrefillWorker"]["replicas"] == 2
    assert services["DecodeWorker"]["extraPodSpec"]["mainContainer"]["args"] == [
        "python3 -m dynamo.vllm --model m -tp 4"
    ]
    assert FORMS[0] == "shell"
    with pytest.raises(BadInput, match="form"):
        render("helm", "vllm", "0.22.1", POOLS)

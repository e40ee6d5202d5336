"""Command lines of servers and clients as people paste them."""

from __future__ import annotations

import json
import random
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest

from pipewave.cli import build
from pipewave.errors import BadInput, MissingField
from pipewave.files import packaged
from pipewave.models import load
from pipewave.models.precision import FP8
from pipewave.published import client_command, server_command
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of
from tests.command_line import CliRunner

VLLM = """vllm serve meta-llama/Llama-3.1-70B-Instruct --host 0.0.0.0 --port 8000 \\
  --tensor-parallel-size 4 --max-num-seqs=64 --max-num-batched-tokens 4096 --gpu-memory-utilization 0.9 \\
  --kv-cache-dtype fp8 --no-enable-prefix-caching --disable-log-requests"""


@pytest.mark.parametrize(
    ("command", "engine", "changes"),
    [
        (VLLM, "vllm", {"tp": 4, "max_num_seqs": 64, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.9, "kv_dtype": "fp8",
            "prefix_cache": False}),
        ("vllm serve DeepSeek-V3 -dp 8 --enable-expert-parallel", "vllm", {"dp": 8, "ep": 8}),
        ("vllm serve Llama-3.1-8B -dp 4 --enable-expert-parallel", "vllm", {"dp": 4}),
        (
            """vllm serve DeepSeek-V3 -tp 8 --speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 2}'""",
            "vllm",
            {"tp": 8, "speculative": of("mtp,tokens=2")},
        ),
        (
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp-size 8 --enable-dp-attention "
            "--mem-fraction-static 0.82 --chunked-prefill-size 8192 --trust-remote-code",
            "sglang",
            {"tp": 1, "dp": 8, "gpu_memory_utilization": 0.82, "max_num_batched_tokens": 8192},
        ),
        ("python -m sglang.launch_server --model-path Llama-3.1-8B --dp-size 2", "sglang", {"replicas": 2}),
        (
            "python -m sglang.launch_server --model Llama-3.1-8B --speculative-algorithm EAGLE3 --speculative-num-steps 3",
            "sglang",
            {"speculative": of("eagle3,tokens=3")},
        ),
        ("trtllm-serve serve Llama-3.1-8B --tp_size 2 --max_batch_size 32", "trtllm", {"tp": 2, "max_num_seqs": 32}),
        ("trtllm-serve Llama-3.1-8B --backend pytorch", "trtllm", {}),
        ("docker run --gpus all vllm/vllm-openai vllm serve Qwen3-0.6B", "vllm", {}),
        ("vllm serve Llama-3.1-8B --enable-chunked-prefill=False", "vllm", {"chunks": False}),
        ("vllm serve Llama-3.1-8B --no-enable-chunked-prefill --max-model-len 128K", "vllm", {"chunks": False}),
        ("vllm serve Llama-3.1-8B --enable-chunked-prefill=True --max-model-len auto", "vllm", {"chunks": True}),
        ("sglang serve Llama-3.1-8B --chunked-prefill-size -1", "sglang", {"chunks": False, "max_num_batched_tokens": 16384}),
        ("sglang serve DeepSeek-V3 --tp 8 --enable-deepep-moe --deepep-mode normal", "sglang",
            {"tp": 8, "exchange": "deepep_high_throughput"}),
    ],
)  # fmt: skip
def test_servers_as_pasted(command: str, engine: str, changes: dict[str, Any]) -> None:
    found = server_command.read(command)
    assert found.engine == engine
    assert found.setup == Setup(engine=engine, **changes)


def test_what_is_left_out_is_said() -> None:
    found = server_command.read("vllm serve Qwen3-0.6B --enable-lora --served-model-name x")
    assert found.notes == (
        "--enable-lora: not modelled; answered as without it",
        "without effect on times: --served-model-name",
    )
    sglang = server_command.read(
        "sglang serve Qwen3-Next-80B-A3B --mamba-scheduler-strategy extra_buffer --disable-radix-cache"
    )
    assert [note.partition(":")[0] for note in sglang.notes] == ["--mamba-scheduler-strategy"]
    assert sglang.setup.prefix_cache is False
    assert server_command.read("vllm serve Qwen3-0.6B", "0.12.0").setup.engine == "vllm:0.12.0"
    longer = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve Llama-3.1-8B --max-model-len 200k"
    assert server_command.read(longer).setup == Setup()


def test_quantised_checkpoints_by_name() -> None:
    """NVIDIA's DeepSeek-R1 in NVFP4 keeps attention in 16 bits; GLM's in FP8 are quantised throughout."""
    attention, ffn = load("nvidia/DeepSeek-R1-FP4").layers[30].mixer, load("nvidia/DeepSeek-R1-FP4").layers[30].ffn
    assert "nvfp4" in repr(ffn) and "nvfp4" not in repr(attention)
    for name in ("zai-org/GLM-4.5-Air-FP8", "GLM-4.6-FP8"):
        assert {linear.precision for layer in load(name).layers for linear in layer.mixers[0].linears()} == {FP8}


def test_prompts_that_are_not_cut() -> None:
    for line in (
        "vllm serve Llama-3.1-8B --no-enable-chunked-prefill",
        "sglang serve Qwen3-8B --chunked-prefill-size -1",
    ):
        scheduler = server_command.read(line).setup.program().scheduler
        assert not scheduler.chunks and scheduler.max_batched_tokens in (8192, 16384)


@pytest.mark.parametrize("command", ["vllm serve Llama-3.1-8B -q fp8", "sglang serve Llama-3.1-8B --quantization fp8"])
def test_sixteen_bits_are_quantised_while_they_are_loaded(command: str) -> None:
    """Each map of a layer becomes FP8 with inputs quantised beside it; the head stays, as in a checkpoint in FP8."""
    found, plain = server_command.read(command), load("Llama-3.1-8B")
    assert {linear.precision for layer in found.spec.layers for linear in layer.linears()} == {FP8}
    assert found.spec.lm_head == plain.lm_head
    assert found.notes == ("--quantization fp8: 16-bit weights are quantised while they are loaded",)


@pytest.mark.parametrize("model", ["gpt-oss-20b", "DeepSeek-V3", "Kimi-K2"])
def test_a_quantised_checkpoint_stays_as_it_is(model: str) -> None:
    for word in ("fp8", "mxfp4", "gptq_marlin"):
        found = server_command.read(f"vllm serve {model} --quantization {word}")
        assert (found.spec, found.notes) == (load(model), ())


def test_other_words_on_sixteen_bits_are_said_to_be_left_out() -> None:
    found = server_command.read("vllm serve Qwen3-0.6B --quantization bitsandbytes")
    assert found.spec == load("Qwen3-0.6B")
    assert [note.partition(":")[0] for note in found.notes] == ["--quantization bitsandbytes"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("vllm serve -tp 4", MissingField),
        ("tgi --model-id x", BadInput),
        ("vllm serve 'x", BadInput),
        ("vllm serve Qwen3-0.6B -tp four", BadInput),
        ("vllm serve Qwen3-0.6B --gpu-memory-utilization much", BadInput),
        ("vllm serve Qwen3-0.6B --speculative-config x", BadInput),
        ("vllm serve Llama-3.1-8B --max-model-len 200k", BadInput),
        ("trtllm-serve Llama-3.1-8B --backend tensorrt", BadInput),
        ("trtllm-serve Llama-3.1-8B --backend _autodeploy", BadInput),
        ("python -m sglang.launch_server --model DeepSeek-V3 --tp 4 --dp 3 --enable-dp-attention", BadInput),
    ],
)
def test_lines_that_cannot_be_read_are_named(command: str, error: type[BadInput]) -> None:
    with pytest.raises(error):
        server_command.read(command)


def test_each_client_means_its_own_range() -> None:
    """0.8 is 0.2 to 1.8 of the length for vLLM, and 0.8 to 1.0 for SGLang and InferenceX."""
    words = (
        "--random-input-len 1000 --random-output-len 100 --random-range-ratio 0.8 --num-prompts 4000 --request-rate inf"
    )
    around = client_command.read(f"vllm bench serve {words} --max-concurrency 64").traffic
    assert (around.input_len.min(), around.input_len.max()) == (pytest.approx(200, abs=1), pytest.approx(1800, abs=1))
    assert around.concurrency == 64
    for program in ("python3 -m sglang.bench_serving", "python3 bench_serving/benchmark_serving.py"):
        below = client_command.read(f"{program} {words}").traffic
        assert (below.input_len.min(), below.input_len.max()) == (pytest.approx(800, abs=1), pytest.approx(1000, abs=1))
        assert below.input_len.mean() == pytest.approx(900, rel=0.01)
        assert below.concurrency is None
        assert not below.arrival_s.any()


def test_rates_goals_and_prefixes() -> None:
    asked = client_command.read(
        "vllm bench serve --random-input-len 100 --random-output-len 10 --random-prefix-len 50 --num-prompts 2000 "
        "--request-rate 20 --goodput ttft:300 tpot:20 --seed 5"
    )
    assert {limit.metric: limit.ms for limit in asked.limits} == {"ttft_ms": 300, "tpot_ms": 20}
    assert 2000 / asked.traffic.arrival_s[-1] == pytest.approx(20, rel=0.1)
    assert set(asked.traffic.input_len.tolist()) == {150}
    assert asked.traffic.found_len is not None
    assert asked.traffic.found_len.tolist()[:3] == [0, 50, 50]
    assert client_command.read("vllm bench serve --dataset-name sonnet").notes
    for wrong in ("ab -n 5", "vllm bench serve --num-prompts x", "vllm bench serve --goodput speed:3"):
        with pytest.raises(BadInput):
            client_command.read(wrong)
    with pytest.raises(BadInput, match="client: cannot be read as a command line"):
        client_command.read("vllm bench serve 'unclosed")


def _served(*words: str) -> dict[str, Any]:
    found = CliRunner().invoke(build(), ["serve", *words, "--json", "--no-interval"], catch_exceptions=False)
    return dict(json.loads(found.output))


def test_pasted_lines_are_the_options_they_stand_for() -> None:
    pasted = _served(
        "--gpu", "H200", "--from-command", "vllm serve Llama-3.1-8B -tp 2 --max-num-seqs 32",
        "--client", "vllm bench serve --random-input-len 256 --random-output-len 32 --num-prompts 50 --max-concurrency 16",
    )  # fmt: skip
    options = _served(
        "--model", "Llama-3.1-8B", "--gpu", "H200", "--tp", "2", "--max-num-seqs", "32", "--isl", "256", "--osl", "32",
        "--requests", "50", "--concurrency", "16",
    )  # fmt: skip
    assert pasted == options
    assert np.isfinite(pasted["ttft_mean_ms"])


def test_all_at_once_and_inference_x_lengths() -> None:
    found = _served(
        "--model", "Qwen3-0.6B", "--gpu", "H200", "--isl", "100", "--osl", "10", "--num-prompts", "30",
        "--request-rate", "inf", "--random-range-ratio", "0.8",
    )  # fmt: skip
    tokens = found["output_tokens_per_s"] * found["duration_s"]
    assert 30 * 8 <= round(tokens) <= 30 * 10


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("docker run -d --gpus all -p 1:1 vllm/vllm-openai:v0.12.0 --model Qwen3-0.6B -tp 2 --host 0.0.0.0",
         {"engine": "vllm:0.12.0", "tp": 2}),
        ("docker run vllm/vllm-openai:latest --trust-remote-code --model Qwen3-0.6B", {"engine": "vllm"}),
        ("docker run vllm/vllm-openai:v0.12.0-x86_64 vllm serve Qwen3-0.6B", {"engine": "vllm:0.12.0"}),
        ("docker run -e A=b lmsysorg/sglang:v0.5.5-cu129 python3 -m sglang.launch_server --model-path Qwen3-0.6B",
         {"engine": "sglang:0.5.5"}),
        ("docker run --ipc host nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc20 trtllm-serve Qwen3-0.6B",
         {"engine": "trtllm:1.3.0rc20"}),
        ("vllm serve Qwen3-0.6B --stream-interval 10", {"engine": "vllm", "message_tokens": 10}),
        ("vllm serve --trust-remote-code --enable-expert-parallel DeepSeek-V3 -tp 8", {"engine": "vllm", "tp": 8, "ep": 8}),
        ("""vllm serve Qwen3-30B-A3B --speculative-config '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}'""",
         {"engine": "vllm", "speculative": of("mtp,tokens=2")}),
        ("FOO=1 nohup mpirun -n 8 trtllm-llmapi-launch trtllm-serve DeepSeek-R1 --tp_size 8 --trust_remote_code > log 2>&1 &",
         {"engine": "trtllm", "tp": 8}),
    ],
)  # fmt: skip
def test_images_switches_and_launchers(command: str, changes: dict[str, Any]) -> None:
    assert server_command.read(command).setup == Setup(**changes)


@pytest.mark.parametrize(
    "option", ["--tensor-paralell-size 8", "--enable-expert-paralel", "--max-num-batch-tokens=1024"]
)
def test_a_misspelt_option_is_refused_and_the_right_one_named(option: str) -> None:
    with pytest.raises(BadInput, match="did you mean --"):
        server_command.read(f"vllm serve Qwen3-0.6B {option}")


PROGRAMS = {"vllm": "vllm serve", "trtllm": "trtllm-serve", "sglang": "python -m sglang.launch_server --model-path"}
CLIENTS = {"aiperf": "aiperf", "genai-perf": "aiperf", "guidellm": "guidellm"}  # and the table of each


def test_options_of_an_engine_that_only_look_alike_pass() -> None:
    """Every recorded option of every engine and client, and what front ends take."""
    recorded_of = sorted([*server_command.FLAGS.glob("*.txt"), *client_command.FLAGS.glob("*.txt")])
    assert {path.stem.rpartition("-")[0] for path in recorded_of} == {*PROGRAMS, *CLIENTS}
    clients = packaged.shared(client_command.OPTIONS)
    for path in recorded_of:
        name = path.stem.rpartition("-")[0]
        table = clients[CLIENTS[name]] if name in CLIENTS else server_command._table(name)
        known = {*server_command.recorded(CLIENTS.get(name, name), path.parent), *table.get("not_modelled", ())}
        for option in (line for line in path.read_text().splitlines() if line.startswith("-")):
            taken = server_command.options([option], server_command.named(table["fields"]))
            try:
                told = " ".join(server_command.passed_over(name, "it", taken, table, known))
            except BadInput as why:
                assert option in why.message and any(fnmatch(option, one) for one in table["refused"]), (
                    f"{name} {option}: {why}"
                )
                continue
            assert taken.said or option in told, f"{name} {option}: passed over in silence"
            assert "no option that is known" not in told, f"{name} {option}"
        if name in PROGRAMS:
            assert (
                server_command.read(f"{PROGRAMS[name]} Qwen3-0.6B --host 0.0.0.0 --port 80 --api-key x").setup.tp == 1
            )


EVERY = [
    ("vllm serve Qwen3-0.6B", "vllm-0.22.1.txt"),
    ("python -m sglang.launch_server --model-path Qwen3-0.6B", "sglang-0.5.14.txt"),
    ("trtllm-serve Qwen3-0.6B", "trtllm-1.0.0.txt"),
]
VALUED = {
    "--dtype": "bfloat16",
    "--kv-cache-dtype": "auto",
    "--quantization": "fp8",
    "--speculative-algorithm": "NGRAM",
}


def test_pasted_commands_pass_nothing_over_in_silence() -> None:
    """Two hundred lines of three options each: every option is a setting, in a note, or refused."""
    draw = random.Random(0)
    for _ in range(200):
        program, file = draw.choice(EVERY)
        engine, known = file.partition("-")[0], (server_command.FLAGS / file).read_text().splitlines()
        fields = server_command.named(server_command._table(engine)["fields"])
        chosen = [one for one in draw.sample(known[1:], 3) if one not in fields or one in VALUED]
        words = [f"{one} {VALUED[one]}" if one in VALUED else one for one in chosen]
        try:
            told = " ".join(server_command.read(f"{program} {' '.join(words)}").notes)
        except BadInput as refused:
            assert any(one in refused.message for one in chosen), (words, refused.message)
            continue
        assert all(one in told or one in fields for one in chosen), (words, told)


@pytest.mark.parametrize(
    ("line", "option", "why"),
    [("vllm serve Llama-3.1-8B --enable-expert-parallel", "--enable-expert-parallel", "has no experts"),
     ("vllm serve Qwen3-30B-A3B --num-redundant-experts 8", "--num-redundant-experts", "--enable-eplb is not given"),
     ("python -m sglang.launch_server --model Llama-3.1-8B --speculative-num-steps 3", "--speculative-num-steps",
      "--speculative-algorithm is not given")],
)  # fmt: skip
def test_options_that_need_another_are_told(line: str, option: str, why: str) -> None:
    (note,) = server_command.read(line).notes
    assert note.startswith(f"{option}: without effect") and note.endswith(why)


@pytest.mark.parametrize(
    "line",
    ["vllm serve Llama-3.1-8B --enforce-eager", "vllm serve Llama-3.1-8B -O0",
     "python -m sglang.launch_server --model Llama-3.1-8B --disable-cuda-graph"],
)  # fmt: skip
def test_without_cuda_graphs_a_token_takes_twice_as_long(line: str) -> None:
    words = ("--gpu", "H200", "--concurrency", "4", "--requests", "8", "--isl", "100", "--osl", "20", "--from-command")
    plain = line.replace(" --enforce-eager", "").replace(" -O0", "").replace(" --disable-cuda-graph", "")
    assert _served(*words, line)["tpot_mean_ms"] > 1.6 * _served(*words, plain)["tpot_mean_ms"]


def test_weights_in_32_bits_and_second_nodes_are_refused() -> None:
    for wrong in ("--dtype float32", "--headless"):
        with pytest.raises(BadInput):
            server_command.read(f"vllm serve Qwen3-0.6B {wrong}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tp", "4"], "--tp: say it in the command line of --from-command"),
        (["--engine", "sglang"], "--engine sglang: --from-command starts vllm"),
        (["--client", "vllm bench serve", "--isl", "9"], "--isl: say it in the command line of --client"),
        (["--client", "vllm bench serve", "--find-rate"], "leave out --client"),
        (["--find-rate", "--rate", "5"], "leave out --rate"),
        (["--find-rate", "--requests", "5"], "leave out --requests"),
        (["--trace", "requests.csv", "--isl", "9"], "--isl: the file of --trace says"),
    ],
)
def test_what_is_said_twice_is_refused(words: list[str], says: str) -> None:
    line = ["serve", "--gpu", "H200", "--from-command", "vllm serve Qwen3-0.6B -tp 2", *words]
    done = CliRunner().invoke(build(), line)
    assert done.exit_code == 2 and says in str(done.exception)


def test_a_pasted_model_that_is_not_known_may_be_given() -> None:
    found = _served("--gpu", "H200", "--model", "Qwen3-0.6B", "--from-command", "vllm serve org/Private -tp 2",
                    "--concurrency", "4", "--requests", "8", "--isl", "100", "--osl", "20")  # fmt: skip
    assert (found["model"], found["gpus"]) == ("Qwen3-0.6B", 2)


@pytest.mark.parametrize("wrong", ["--max-concurency 4", "--num-promts 3", "--random-inputlen 100"])
def test_a_misspelt_option_of_a_client_is_refused_and_the_right_one_named(wrong: str) -> None:
    with pytest.raises(BadInput, match="did you mean --"):
        client_command.read(f"vllm bench serve {wrong}")


def test_a_client_with_a_rate_and_a_limit_sends_at_the_rate_within_the_limit() -> None:
    load = client_command.read("vllm bench serve --num-prompts 50 --request-rate 5 --max-concurrency 4")
    assert load.traffic.concurrency == 4 and load.traffic.closed is None and not load.notes
    assert load.traffic.arrival_s[-1] == pytest.approx(49 / 5)


def test_options_of_a_client_that_change_nothing_are_told() -> None:
    notes = client_command.read("vllm bench serve --save-result --top-p 0.9 --ramp-up-strategy linear").notes
    assert "without effect on times: --save-result, --top-p" in notes
    assert "--ramp-up-strategy: not modelled; answered as without it" in notes


@pytest.mark.parametrize(
    "option",
    ["-tp 0", "-dp -1", "-pp 1e9", "--stream-interval " + "9" * 400, "--max-num-seqs -1",
     """--eplb-config '{"num_redundant_experts": 1e400}'"""],
)  # fmt: skip
def test_impossible_numbers_of_a_server_are_refused(option: str) -> None:
    with pytest.raises(BadInput):
        server_command.read(f"vllm serve Qwen3-30B-A3B --enable-expert-parallel --enable-eplb {option}")


@pytest.mark.parametrize("word", ["nan", "-inf", "1e300"])
@pytest.mark.parametrize(
    "option", ["--random-input-len", "--num-prompts", "--request-rate", "--random-prefix-len", "--max-concurrency"]
)
def test_impossible_numbers_of_a_client_are_refused(option: str, word: str) -> None:
    with pytest.raises(BadInput):
        client_command.read(f"vllm bench serve --num-prompts 3 {option} {word}")


def test_more_requests_at_once_than_a_table_holds_are_refused() -> None:
    """They were, after seconds, with a list of tokens that nobody gave."""
    with pytest.raises(BadInput, match="max_num_seqs = 32769: must be an integer from 1 to 32768"):
        Setup(max_num_seqs=32_769)
    assert Setup(max_num_seqs=32_768).max_num_seqs == 32_768


@pytest.mark.parametrize(("option", "field"), [("--isl", "input_len"), ("--osl", "output_len")])
def test_a_length_beyond_all_numbers_is_refused_under_a_ratio_too(option: str, field: str) -> None:
    words = ["serve", "--model", "Llama-3.1-8B", "--gpu", "H100", "--rate", "2", "--random-range-ratio", "0.8"]
    done = CliRunner().invoke(build(), [*words, option, "9" * 400])
    assert (
        done.exit_code == 2
        and f"{field} = " in str(done.exception)
        and "must be an integer from 1" in str(done.exception)
    )


@pytest.mark.parametrize(
    ("command", "requests", "shared", "own", "output", "groups"),
    [
        ("vllm bench serve --dataset-name prefix_repetition --num-prompts 100", 100, 256, 256, 128, 10),
        ("vllm bench serve --dataset-name prefix_repetition --prefix-repetition-num-prefixes 4 --num-prompts 12 "
         "--prefix-repetition-prefix-len 64 --prefix-repetition-suffix-len 32 --prefix-repetition-output-len 8",
         12, 64, 32, 8, 4),
        ("python3 -m sglang.bench_serving --dataset-name generated-shared-prefix", 1024, 2048, 128, 256, 64),
        ("python3 -m sglang.benchmark.serving --dataset-name generated-shared-prefix --gsp-num-groups 3 "
         "--gsp-prompts-per-group 5 --gsp-system-prompt-len 100 --gsp-question-len 20 --gsp-output-len 7 --num-prompts 9",
         15, 100, 20, 7, 3),
        ("vllm bench serve --random-prefix-len 50 --random-input-len 10 --random-output-len 5 --num-prompts 8",
         8, 50, 10, 5, 1),
    ],
)  # fmt: skip
def test_prompts_that_begin_alike_find_what_the_first_of_their_group_left(
    command: str, requests: int, shared: int, own: int, output: int, groups: int
) -> None:
    """Lengths are exact, and so are the defaults of both tools; SGLang's counts its prompts by groups."""
    load = client_command.read(command)
    assert not load.notes
    traffic = load.traffic
    assert len(traffic) == requests
    assert set(traffic.input_len.tolist()) == {shared + own} and set(traffic.output_len.tolist()) == {output}
    assert traffic.found_len is not None
    assert sorted(traffic.found_len.tolist()) == [0] * groups + [shared] * (requests - groups)
    assert traffic.found_len[0] == 0


@pytest.mark.parametrize("option", ["--gsp-num-groups 0", "--gsp-prompts-per-group -1"])
def test_groups_of_prompts_have_members(option: str) -> None:
    with pytest.raises(BadInput, match="must be an integer from 1"):
        client_command.read(f"python -m sglang.bench_serving --dataset-name generated-shared-prefix {option}")

"""Wrong deployments: lines of `serve --cases`, options, pasted commands and `config.json` files, changed at random.

Areas of `qa.chaos.inputs`, which asks them.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from qa.chaos.nasty import VALUES, changed, said

Question = Callable[[], object]
Options = dict[str, Any]

LINES: tuple[dict[str, Any], ...] = (
    {"id": 1, "model": "Qwen3-30B-A3B", "gpu": "H200", "engine": "vllm", "version": "0.22.1", "tp": 2, "ep": 2,
     "isl": 300, "osl": 6, "spread": 0.3, "rate": 20.0, "requests": 5, "mode": "serve", "max_num_seqs": 64,
     "prefix_share": 0.2, "max_num_batched_tokens": 2048, "memory_fraction": 0.9, "kv_dtype": "fp8"},
    {"id": 2, "model": "DeepSeek-V3", "gpu": "B200", "engine": "sglang", "tp": 8, "dp": 8, "ep": 8, "isl": 200,
     "osl": 8, "concurrency": 4, "requests": 4, "speculative": {"method": "mtp", "tokens": 2, "acceptance": 0.7}},
    {"id": 3, "model": "Llama-3.1-70B", "gpu": "H100", "engine": "trtllm", "tp": 4, "isl": 200, "osl": 8,
     "concurrency": 2, "requests": 4, "disaggregated": True, "prefill": {"workers": 2, "tp": 4},
     "decode": {"workers": 1, "tp": 8}},
    {"id": 4, "model": "Llama-3.1-8B", "gpu": "MI300X", "mode": "estimate", "isl": 100, "osl": 4, "concurrency": 2},
    {"id": 5, "model": "Llama-3.1-8B", "gpu": "L40S", "mode": "offline", "arrivals": [[0, 90, 3], [0.1, 40, 4]],
     "speculative": "method=ngram,tokens=3"},
    {"id": 6, "model": "gpt-oss-120b", "gpu": "H200", "tp": 2, "gpus": 4, "disaggregated": True, "isl": 128, "osl": 4,
     "concurrency": 4, "requests": 4},
)  # fmt: skip
ESTIMATE: Options = {
    "--model": "Qwen2.5-VL-7B", "--gpu": "H200", "--batch": 3, "--isl": 400, "--osl": 5, "--images": 1,
    "--engine": "vllm:0.22.1", "--max-num-batched-tokens": 512, "--kv-cache-dtype": "fp8", "--moe-backend": "triton",
    "--speculative": "method=eagle3,tokens=3,acceptance=0.6", "--tp": 1, "--pp": 1, "--ep": 1, "--dp": 1,
}  # fmt: skip
SERVE: Options = {
    "--model": "Qwen3-30B-A3B", "--gpu": "H100", "--isl": 100, "--osl": 4, "--images": 0, "--requests": 4,
    "--request-rate": 9.5, "--concurrency": 2, "--burstiness": 0.5, "--spread": 0.2, "--random-range-ratio": 0.8,
    "--seed": 1, "--tp": 2, "--ep": 2, "--engine": "sglang:0.5.9", "--max-num-seqs": 8, "--kv-cache-dtype": "fp8",
    "--gpu-memory-utilization": 0.8, "--speculative": "method=ngram,tokens=2", "--lora": "rank=16,adapters=4",
    "--all2all-backend": "deepep", "--eplb": "redundant=32,loads=power_law_1.2", "--kv-offload-gib": 4, "--replicas": 2,
    "--prefill": "workers=2,tp=2", "--decode": "workers=1,tp=4", "--host": "cores=16,speed=0.8,api_servers=2",
    "--ttft": 900, "--tpot": 30, "--request-latency": 5000,
}  # fmt: skip
NEEDED = ("--model", "--gpu", "--batch", "--isl", "--osl", "--requests")
SERVERS = (
    "vllm serve Qwen/Qwen3-30B-A3B -tp 2 --enable-expert-parallel --max-num-seqs 64 --kv-cache-dtype fp8 "
    "--stream-interval 2 --gpu-memory-utilization 0.9 --max-num-batched-tokens 2048 --port 8000",
    "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention "
    "--speculative-algorithm NEXTN --speculative-num-steps 2 --chunked-prefill-size 4096 --mem-fraction-static 0.85",
    "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-8B-Instruct "
    "--quantization fp8 --async-scheduling",
    "trtllm-serve openai/gpt-oss-120b --tp_size 2 --ep_size 2 --max_batch_size 32 --max_num_tokens 4096",
    """vllm serve meta-llama/Llama-3.1-8B --speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'""",
)
CLIENTS = (
    "vllm bench serve --dataset-name random --random-input-len 90 --random-output-len 4 --num-prompts 4 "
    "--max-concurrency 2 --request-rate inf --random-prefix-len 20 --burstiness 0.5 --seed 3 "
    "--goodput ttft:500 tpot:30",
    "python -m sglang.bench_serving --dataset-name random --random-input 90 --random-output 4 --num-prompts 4 "
    "--random-range-ratio 0.5 --request-rate 8",
)


def lines(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """Experts, drafts, pools, recorded arrivals, batches and the rest of a line's fields."""
    while True:
        line = said(pick.choice(LINES), pick).decode("utf-8", "replace").replace("\n", " ")
        yield partial(answers, line)


def options(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """`estimate` and `serve` with some of their options, some of them changed."""
    while True:
        name, known = pick.choice((("estimate", ESTIMATE), ("serve", SERVE)))
        given = {key: value for key, value in known.items() if key in NEEDED or pick.random() < 0.25}
        words = [name, *_words(changed(given, pick)), "--json"]
        yield partial(run, words)


def swept(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """One field of a line, or one option, set to one odd value: every pair once before any comes again."""
    whole: list[tuple[str, Options]] = [("", line) for line in LINES]
    whole += [(name, known) for name, known in (("estimate", ESTIMATE), ("serve", SERVE))]
    pairs = [(name, known, key, value) for name, known in whole for key in known for value in VALUES]
    while True:
        pick.shuffle(pairs)
        for name, known, key, value in pairs:
            if name:
                given = {other: known[other] for other in known if other in NEEDED} | {key: value}
                words = [name, *_words(given), "--json"]
                yield partial(run, words)
            else:
                line = json.dumps(known | {key: value})
                yield partial(answers, line)


def pasted(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """Command lines of servers and of benchmarks, with words changed, lost, doubled or cut."""
    while True:
        server, client = (_mangled(pick.choice(known), pick) for known in (SERVERS, CLIENTS))
        words = ["serve", "--gpu", pick.choice(("H200", "B200")), f"--from-command={server}", f"--client={client}"]
        yield partial(run, [*words, "--json"])


def configs(pick: random.Random, folder: Path) -> Iterator[Question]:
    """`config.json` of any built-in model: its whole list of kernels, and a step."""
    import pipewave as pw
    from pipewave.models.load import FOLDER

    known = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    path = folder / "config.json"
    while True:
        path.write_bytes(said(pick.choice(known), pick))
        yield lambda: pw.estimate(path, "H200", batch=2, input_len=64, output_len=3, tp=pick.choice((1, 2))).to_dict()


def answers(line: str) -> list[dict[str, Any]]:
    """What `serve --cases` answers to a line."""
    from pipewave.published.stream import answer_lines

    return list(answer_lines([line]))


def run(words: list[str]) -> Any:
    """What a command prints as JSON; raises what it raises."""
    from pipewave.cli import build

    printed = io.StringIO()
    with redirect_stdout(printed):
        status = build().run(words)
    assert status == 0, f"exit code {status}: {printed.getvalue()[-200:]}"
    return json.loads(printed.getvalue(), parse_constant=_no_number)


def _words(given: Options) -> list[str]:
    return [f"{name}={'' if value is None else value}" for name, value in given.items()]


def _mangled(command: str, pick: random.Random) -> str:
    words = command.split(" ")
    for _ in range(pick.randrange(4)):
        at, way = pick.randrange(len(words)), pick.random()
        if way < 0.5:
            numbers = [i for i, word in enumerate(words) if word.replace(".", "").isdigit()]
            words[pick.choice(numbers or [at])] = str(pick.choice(VALUES))
        elif way < 0.7:
            del words[at]
        elif way < 0.85:
            words[at:at] = [words[at]] * pick.choice((1, 3))
        else:
            words[at] = words[at][: pick.randrange(len(words[at]) + 1)] + pick.choice(
                ("", "'", '"', "=", "=1", "\\", "--")
            )
    return " ".join(words)


def _no_number(text: str) -> float:
    raise AssertionError(f"{text} in an answer")


AREAS: dict[str, Callable[[random.Random, Path], Iterator[Question]]] = {
    "deployment": lines,
    "options": options,
    "sweep": swept,
    "pasted": pasted,
    "model": configs,
}

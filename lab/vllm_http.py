"""vLLM's own HTTP server under its own client: TTFT, TPOT and throughput of random weights, request by request.

    python -m lab.vllm_http --model Llama-3.1-8B --out rows/        (needs a GPU and vLLM)

starts `vllm serve` with nothing but a config and a tokenizer of as many words as the model has tokens, then runs `vllm
bench serve` (dataset `random`, fixed lengths, no end of text) at several concurrencies and at one Poisson rate. One
JSON line a level; times in ms, arrivals in seconds from the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.vllm_engine.launch import ENVIRONMENT, Setup, config_of
from lab.vllm_engine.served import RANDOM_GATES, UNTIL, plugin_folder

CONCURRENCIES = {1: 8, 8: 40, 32: 128, 128: 384}  # requests of each
POISSON_SHARE = 0.6  # of the requests a second that 32 clients reach
POISSON_SECONDS = 15.0
WARM_REQUESTS = 8  # at most, and two for each client
START_S = 600.0  # of all servers that start together, waits included
Row = dict[str, Any]


def model_folder(config: Row) -> Path:
    """A folder with a config and a word-level tokenizer: text of n words is n tokens, as the client assumes."""
    folder = Path(tempfile.mkdtemp(prefix="pipewave-"))
    (folder / "config.json").write_text(json.dumps(config))
    vocab = {f"w{number}": number for number in range(config["vocab_size"])}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    parts: Row = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    split = {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    (folder / "tokenizer.json").write_text(json.dumps(parts | split | {"model": model}))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def serve(folder: Path, log: Path, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """The server's process, in a group of its own; its log names what it chose."""
    chosen = ["--load-format", "dummy", "--dtype", "bfloat16", "--no-enable-prefix-caching", "--seed", "0"]
    chosen += ["--quantization", given.quantization] if given.quantization else []
    # a cache of a stated size, and a small share to be free at the start: several servers can start at once
    chosen += ["--kv-cache-memory-bytes", str(given.kv_bytes), "--gpu-memory-utilization", "0.1"] * bool(given.kv_bytes)
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--port", str(given.port)]
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, *chosen], stdout=file, stderr=file, env=environment(given), start_new_session=True
        )


def environment(given: argparse.Namespace) -> dict[str, str]:
    """The server's environment: this one's, with what its engine must do first."""
    usual = {
        name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"
    } | os.environ
    paths = [str(plugin_folder()), *filter(None, [usual.get("PYTHONPATH")])]
    asked = {RANDOM_GATES: "1" if given.random_gates else "", UNTIL: f"{given.turn}.begin" if given.turn else ""}
    return usual | asked | {"PYTHONPATH": os.pathsep.join(paths)}


def wait_for(server: subprocess.Popen[bytes], until_s: float, port: int) -> None:
    """Return when the server answers; raises RuntimeError when it ended or took too long."""
    while server.poll() is None and time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.25)
    raise RuntimeError(f"no server: exit status {server.poll()}")


def take_turn(turn: Path | None) -> None:
    """Say that the server is ready and wait to be let on, where several were started at once."""
    if turn is None:
        return
    Path(f"{turn}.ready").touch()
    while not Path(f"{turn}.go").exists():
        time.sleep(0.05)


def bench(
    at: tuple[Path, int], lengths: tuple[int, int], requests: int, *, concurrency: int | None, rate: float
) -> Row:
    """One run of `vllm bench serve` in this process, of a model's folder and a port: what it returns."""
    from vllm.benchmarks.serve import add_cli_args, main_async

    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    folder, port = at
    given = ["--backend", "openai", "--base-url", f"http://127.0.0.1:{port}", "--model", str(folder)]
    given += ["--dataset-name", "random", "--random-input-len", str(lengths[0]), "--random-output-len", str(lengths[1])]
    given += [
        "--num-prompts",
        str(requests),
        "--request-rate",
        str(rate),
        "--temperature",
        "0",
        "--disable-tqdm",
        "--save-detailed",
    ]
    warm = min(WARM_REQUESTS, 2 * concurrency) if concurrency else WARM_REQUESTS
    given += ["--num-warmups", str(warm), "--seed", str(requests), "--ready-check-timeout-sec", "0"]
    given += ["--max-concurrency", str(concurrency)] if concurrency else []
    found: Row = asyncio.run(main_async(parser.parse_args(given)))
    return found


def level(found: Row, lengths: tuple[int, int], *, concurrency: int | None, rate: float) -> Row:
    """A row of one run; requests by arrival: arrival s, prompt, output, TTFT ms, TPOT ms, longest ITL ms."""
    starts = np.array(found["start_times"]) - min(found["start_times"])
    requests = [
        [round(start, 5), prompt, output, *_times(ttft, itl)]
        for start, prompt, output, ttft, itl in zip(
            starts.tolist(), found["input_lens"], found["output_lens"], found["ttfts"], found["itls"], strict=True
        )
    ]
    between = 1e3 * np.concatenate([np.asarray(itl, float) for itl in found["itls"]])
    return {
        "concurrency": concurrency, "rate": None if rate == float("inf") else rate,
        "isl": lengths[0], "osl": lengths[1],
        "completed": found["completed"], "duration_s": found["duration"],
        "requests_per_s": found["request_throughput"], "output_tokens_per_s": found["output_throughput"],
        "ttft_ms": 1e3 * float(np.mean(found["ttfts"])),
        "tpot_ms": float(np.mean([request[4] for request in requests])),
        "itl_ms": {f"p{share}": float(np.percentile(between, share)) for share in (1, 10, 50, 90, 99)},
        "requests": sorted(requests),
    }  # fmt: skip


def _times(ttft_s: float, between_s: Sequence[float]) -> list[float]:
    mean = sum(between_s) / max(1, len(between_s))
    return [round(1e3 * value, 3) for value in (ttft_s, mean, max(between_s, default=0.0))]


def measure(given: argparse.Namespace, folder: Path, write: Any) -> None:
    """All levels of one running server, the Poisson rate set by what the closed loops reached."""
    at, lengths, reached = (folder, given.port), (given.isl, given.osl), 0.0
    endless = float("inf")
    for concurrency, requests in CONCURRENCIES.items():
        found = bench(at, lengths, requests, concurrency=concurrency, rate=endless)
        write(level(found, lengths, concurrency=concurrency, rate=endless))
        reached = found["request_throughput"] if concurrency == 32 else reached
    rate = round(POISSON_SHARE * reached, 2)
    found = bench(at, lengths, int(rate * POISSON_SECONDS), concurrency=None, rate=rate)
    write(level(found, lengths, concurrency=None, rate=rate))


def arguments() -> argparse.Namespace:
    """What the command was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a built-in model, a config.json or a directory with one")
    parser.add_argument("--out", required=True, type=Path, help="directory of the rows and the server's log")
    parser.add_argument("--isl", type=int, default=1024)
    parser.add_argument("--osl", type=int, default=128)
    parser.add_argument("--quantization", help="weights quantised as they load, as vLLM names it (fp8)")
    parser.add_argument("--random-gates", action="store_true", help="draw the experts of kernels that route inside")
    parser.add_argument("--kv-bytes", type=int, help="size of the KV cache; vLLM's own choice without it")
    parser.add_argument("--port", type=int, default=8011)
    parser.add_argument(
        "--turn", type=Path, help="PATH: take the GPU at PATH.begin, say PATH.ready, measure at PATH.go"
    )
    return parser.parse_args()


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and what it started."""
    os.killpg(server.pid, signal.SIGINT)
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)


def main() -> int:
    """Start, measure, stop; returns the exit status."""
    given = arguments()
    name = Setup(given.model).name + (f"-{given.quantization}" if given.quantization else "")
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    folder = model_folder(config_of(given.model, None))
    server = serve(folder, given.out / f"server-{name}.log", given)
    common = {
        "model": Setup(given.model).name,
        "quantization": given.quantization,
        "engine": "vllm",
        "kv_bytes": given.kv_bytes,
        "random_gates": given.random_gates,
        "simulated_routing": os.environ.get("VLLM_MOE_ROUTING_SIMULATION_STRATEGY"),
    }

    def write(row: Row) -> None:
        with (given.out / f"http-{name}-tp1.jsonl").open("a") as file:
            file.write(json.dumps(common | row) + "\n")
        sys.stderr.write(json.dumps({key: value for key, value in row.items() if key != "requests"}) + "\n")

    try:
        import vllm.benchmarks.serve  # takes long, so while the server starts

        wait_for(server, began + START_S, given.port)
        common |= {"vllm": vllm.__version__, "start_s": round(time.monotonic() - began, 1)}
        take_turn(given.turn)
        measure(given, folder, write)
    finally:
        stop(server)
    return 0


if __name__ == "__main__":
    sys.exit(main())

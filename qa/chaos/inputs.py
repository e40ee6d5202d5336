"""Wrong inputs: `python -m qa.chaos.inputs [--count 46000] [--area NAME]`.

Every area (predictions, estimates, served traffic, replays, traces, GPU files, calibrations, tuning tables, whole
deployments, options, pasted command lines, model configs) gets its share of inputs that are changed at random. Each has
to be answered, or refused by a typed error, within five seconds of CPU and a minute of the clock, without NaN in the
answer; each area in a process of its own, whose memory is measured.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from qa import snapshot
from qa.chaos import deployments, made
from qa.chaos.deployments import Question
from qa.chaos.nasty import VALUES, changed, damaged, said

LONGEST_S, WAITING_S = 5.0, 60.0  # of CPU, whatever else the machine does; and of the clock
MOST_BYTES = 4 << 30  # of address space: a MemoryError here, not the end of the machine
ROOT = Path(__file__).resolve().parents[2]
SHARES = {"predict": 12, "estimate": 2, "serve": 2, "replay": 2, "trace": 3, "gpu": 5, "calibration": 2, "table": 2,
          "deployment": 2, "options": 2, "sweep": 6, "pasted": 2, "model": 4}  # fmt: skip
GPU_FILE = """name: Mine
base: H200
sms: 132
boost_clock_mhz: 1980
dram_gb: 141
dram_gbps: 4800
l2_mb: 50
fp16_tflops: 989
tdp_w: 700
link_gbps: 450
"""
ESTIMATE: dict[str, Any] = {"model": "Llama-3.1-8B", "gpu": "H200", "engine": "vllm", "tp": 1, "batch": 4,
                            "input_len": 512, "output_len": 16}  # fmt: skip
SERVE: dict[str, Any] = {
    "id": 1, "model": "Llama-3.1-8B", "gpu": "H100", "engine": "vllm", "tp": 1, "isl": 200, "osl": 8, "concurrency": 2,
    "requests": 4, "mode": "serve",
}  # fmt: skip
REPLAY: dict[str, Any] = {
    "model": "LlamaForCausalLM", "tp_size": 1, "pp_size": 1, "ep_size": 1,
    "model_params": {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                     "intermediate_size": 8192, "vocab_size": 32000, "num_hidden_layers": 4},
    "iterations": [
        {"iteration": 1, "phase": "prefill", "batch_size": 2, "q_lengths": [9, 17], "kv_lengths": [9, 17]},
        {"iteration": 2, "phase": "decode", "batch_size": 2, "q_lengths": [1, 1], "kv_lengths": [10, 18]},
    ],
}  # fmt: skip


def predictions(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """Lines of cases, as `pipewave predict --cases` reads them, and calls from Python."""
    import pipewave as pw

    for case in snapshot.cases(1 << 30, pick.randrange(1 << 30)):
        line = said(case, pick).decode("utf-8", "replace").replace("\n", " ")
        other = changed(case, pick)
        gpu = pick.choice(("H200", "L40S", "NOPE", pick.choice(VALUES)))
        yield partial(_documents, line)
        yield partial(lambda other, gpu: pw.predict([other], gpu).to_dict(), other, gpu)


def estimates(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """Whole models."""
    import pipewave as pw

    while True:
        query = changed(ESTIMATE, pick)
        yield partial(lambda query: pw.estimate(**_named(query)).to_dict(), query)


def _named(query: dict[str, Any]) -> dict[str, Any]:
    """Only names that the function has: another is a TypeError of Python's own, before any of ours runs."""
    return {name: query.get(name, value) for name, value in ESTIMATE.items()}


def served(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """Deployments under requests."""
    while True:
        line = said(SERVE, pick).decode("utf-8", "replace").replace("\n", " ")
        yield partial(deployments.answers, line)


def replays(pick: random.Random, folder: Path) -> Iterator[Question]:
    """Recorded iterations."""
    from pipewave.simulate.replay import read_workload, replay

    path = folder / "workload.json"
    while True:
        path.write_bytes(said(REPLAY, pick))
        yield lambda: replay(read_workload(path), "H200").to_dict()


def traces(pick: random.Random, _folder: Path) -> Iterator[Question]:
    """Small profiles, with and without a model."""
    from pipewave.models import load
    from pipewave.models.kernels import Deployment
    from pipewave.traces import Workload, explain_trace
    from pipewave.traces.reader import parse

    tables = [
        (ROOT / "tests" / "data" / "traces" / name).read_bytes()[:20_000] for name in ("ncu-h200.csv", "nsys.csv")
    ]
    export = (ROOT / "tests" / "data" / "traces" / "nsys.sqlite").read_bytes()
    eager = _small_trace()
    deployment = Deployment(load("Llama-3.1-8B"))
    while True:
        kind = pick.random()
        text = damaged(pick.choice((*tables, export)), pick) if kind < 0.5 else said(eager, pick)
        known = Workload(deployment) if pick.random() < 0.3 else None
        yield partial(
            lambda text, known: explain_trace(parse(text, "a trace"), gpu="H200", workload=known).to_dict(), text, known
        )


def _small_trace() -> dict[str, Any]:
    from gzip import decompress

    path = ROOT / "data" / "measured" / "h200" / "traces" / "trace-Llama-3.1-8B-tp1-4layers-eager-prefill.json.gz"
    whole: dict[str, Any] = json.loads(decompress(path.read_bytes()))
    events = whole["traceEvents"]
    return {"deviceProperties": whole["deviceProperties"], "traceEvents": events[:: max(1, len(events) // 250)]}


def gpu_files(pick: random.Random, folder: Path) -> Iterator[Question]:
    """A user's GPU as YAML and JSON."""
    import yaml

    import pipewave as pw
    from pipewave.gpus import find

    document = yaml.safe_load(GPU_FILE)
    while True:
        if pick.random() < 0.5:
            path, text = folder / "own.json", said(document, pick)
        else:
            path, text = folder / "own.yaml", damaged(GPU_FILE.encode(), pick)
        path.write_bytes(text)
        yield partial(lambda path: pw.predict(pw.gemm(512, 512, 512), find(path)).to_dict(), path)


def calibrations(pick: random.Random, folder: Path) -> Iterator[Question]:
    """Bytes of a calibration."""
    from pipewave.nets.calibration.corrections import load

    whole = made.calibration(folder / "h200.safetensors").read_bytes()
    path = folder / "changed.safetensors"
    while True:
        path.write_bytes(damaged(whole, pick))
        yield lambda: load(path) and None


def tables(pick: random.Random, folder: Path) -> Iterator[Question]:
    """Bytes of a tuning table."""
    from pipewave.tune import load_table

    whole = made.tune_table(folder / "gemm.safetensors").read_bytes()
    path = folder / "changed.safetensors"
    while True:
        path.write_bytes(damaged(whole, pick))
        yield lambda: load_table("gemm", path=path, env={}) and None


AREAS: dict[str, Callable[[random.Random, Path], Iterator[Question]]] = {
    "predict": predictions, "estimate": estimates, "serve": served, "replay": replays, "trace": traces,
    "gpu": gpu_files, "calibration": calibrations, "table": tables, **deployments.AREAS,
}  # fmt: skip


def _documents(line: str) -> list[Any]:
    """What `predict --cases` answers to a line; NaN is no JSON."""
    from pipewave.prediction.jsonl import Counts, answer_lines

    return [json.loads(text, parse_constant=_no_number) for text in answer_lines([line], None, Counts())]


def _no_number(text: str) -> float:
    raise AssertionError(f"{text} in an answer")


class HangError(BaseException):
    """An input took longer than it may. No Exception: a batch answers those in their place and goes on."""


def _hang(_number: int, _frame: FrameType | None) -> None:
    raise HangError


def verdict(question: Question, longest_s: float = LONGEST_S) -> str:
    """`answered`, `refused`, or what must not be: `hang`, `nan`, `traceback …`."""
    from pipewave.errors import PipewaveError

    timers = {signal.ITIMER_PROF: longest_s, signal.ITIMER_REAL: WAITING_S}
    for timer, seconds in timers.items():
        signal.setitimer(timer, seconds)
    try:
        found = question()
        text = json.dumps(found, default=str)
    except PipewaveError:
        return "refused"
    except HangError:
        return "hang"
    except Exception as error:  # noqa: BLE001 (what is counted)
        return f"traceback {type(error).__name__}: {error}"[:300]
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
    if '"code": "internal"' in text:
        return f"traceback {text}"[:300]
    return "nan" if _has_nan(found) else "refused" if '"error"' in text else "answered"


def _has_nan(found: object) -> bool:
    if isinstance(found, float):
        return math.isnan(found)
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else ()
    return any(map(_has_nan, inner))


def ask(area: str, count: int, seed: int, longest_s: float = LONGEST_S) -> dict[str, Any]:
    """Figures of one area, asked in this process; a question that takes over `longest_s` of CPU hangs."""
    for told in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(told, _hang)
    verdicts: Counter[str] = Counter()
    bad: list[Any] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        questions = AREAS[area](random.Random(seed), Path(folder))
        for number in range(count):
            question, start = next(questions), time.process_time()
            outcome = verdict(question, longest_s)
            slowest = max(slowest, time.process_time() - start)
            verdicts[outcome.split(" ")[0]] += 1
            if outcome not in ("answered", "refused"):
                bad.append([number, outcome])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    names = ("answered", "refused", "hang", "nan", "traceback")
    return {"inputs": count, **{name: verdicts[name] for name in names}, "slowest_s": round(slowest, 2),
            "peak_mib": peak, "examples": bad[:12]}  # fmt: skip


def run(count: int, seed: int, areas: list[str]) -> dict[str, Any]:
    """Figures by area, each in a process of its own."""
    found = {}
    for area in areas:
        share = str(count * SHARES[area] // sum(SHARES.values()))
        command = [sys.executable, "-m", "qa.chaos.inputs", "--child", area, "--count", share, "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        found[area] = json.loads(done.stdout.splitlines()[-1])
        print(area, json.dumps(found[area]), flush=True)
    return found


def failed(found: dict[str, Any]) -> bool:
    """Whether any area has a traceback, a hang or NaN, or took more than 500 MiB."""
    bad = ("hang", "nan", "traceback")
    return any(one[name] for one in found.values() for name in bad) or any(o["peak_mib"] > 500 for o in found.values())


def main() -> int:
    """Print the figures; 1 where an input was not answered as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=46_000)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--area", action="append", choices=sorted(AREAS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        answer, shown = ask(options.child, options.count, options.seed), sys.stdout
        sys.stdout = io.StringIO()
        shown.write(json.dumps(answer) + "\n")
        return 0
    return 1 if failed(run(options.count, options.seed, options.area or list(AREAS))) else 0


if __name__ == "__main__":
    sys.exit(main())

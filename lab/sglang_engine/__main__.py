"""`python -m lab.sglang_engine`: time whole steps of SGLang for one model, one JSON line a point.

Rows are written as they come, so a run that is cut short leaves what it measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.sglang_engine import plan, rows, scheduler
from lab.sglang_engine.plan import Arrival, Staircase
from lab.vllm_engine import gpu
from lab.vllm_engine.launch import Setup, config_of

FAILURES = (RuntimeError, ValueError, AssertionError, LookupError, AttributeError, TypeError, OSError)
SETTLE_S = 0.05
ENVIRONMENT = {
    "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
    "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
# backends that need no package beyond SGLang's own kernels
ARGUMENTS = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "attention_backend": "fa3",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_radix_cache": True,
    "random_seed": 0,
}
SETTINGS = (
    "attention_backend", "sampling_backend", "chunked_prefill_size", "max_prefill_tokens", "mem_fraction_static",
    "page_size", "disable_overlap_schedule", "cuda_graph_max_bs", "cuda_graph_bs", "moe_runner_backend",
    "enable_mixed_chunk", "disable_radix_cache", "schedule_policy", "dtype", "kv_cache_dtype", "max_running_requests",
    "piecewise_cuda_graph_max_tokens", "piecewise_cuda_graph_tokens", "disable_piecewise_cuda_graph",
    "cuda_graph_config", "stream_interval",
)  # fmt: skip
Row = dict[str, Any]


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.sglang_engine", description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a built-in model, a config.json or a directory with one")
    parser.add_argument("--layers", type=int, help="keep only the model's first layers")
    parser.add_argument("--out", required=True, type=Path, help="directory of the rows")
    parser.add_argument("--note", default="", help="goes into the rows' file name and rows")
    parser.add_argument("--budget-s", type=float, default=300.0, help="seconds, starting the engine included")
    parser.add_argument("--memory-fraction", type=float, help="SGLang's mem_fraction_static; default: SGLang's")
    parser.add_argument("--points", choices=("all", "prefill", "decode"), default="all")
    return parser.parse_args(argv)


class Run:
    """A started engine, driven a point at a time."""

    def __init__(self, engine: Any, notes: rows.NotesFile, vocab: int, write: Callable[[str, Row], None]) -> None:
        self._engine = engine
        self._notes = notes
        self._write = write
        self._vocab = vocab
        self._draw = np.random.default_rng(0)
        self._calls = 0
        self._sample = gpu.sampler()

    def _generate(self, count: int, length: int, new_tokens: Sequence[int]) -> tuple[list[Row], list[list[int]], float]:
        """Batches of the scheduler, tokens made, and ms that the public entry point took."""
        self._calls += 1
        prompts = self._draw.integers(0, self._vocab, (count, length)).tolist()
        names = [scheduler.request_name(self._calls, index, count) for index in range(count)]
        sampling = [{"temperature": 0.0, "max_new_tokens": new, "ignore_eos": True} for new in new_tokens]
        began = time.perf_counter()
        answers = self._engine.generate(input_ids=prompts, sampling_params=sampling, rid=names)
        taken = 1e3 * (time.perf_counter() - began)
        time.sleep(SETTLE_S)
        return self._notes.new(), [answer["output_ids"] for answer in answers], taken

    def arrival(self, point: Arrival) -> None:
        """A prefill row."""
        runs = [self._generate(point.batch, point.input_len, [1] * point.batch) for _ in range(point.times)]
        row = rows.prefill_row(point, [batches for batches, _, _ in runs], [taken for _, _, taken in runs])
        self._write("step", row | self._sample())

    def staircase(self, point: Staircase) -> None:
        """A decode row for each batch size."""
        batches, texts, _ = self._generate(point.batches[0], point.context, point.new_tokens())
        for row in rows.decode_rows(point, batches, texts):
            self._write("step", row | self._sample())


def writer(given: argparse.Namespace, name: str) -> Callable[[str, Row], None]:
    """Appends rows that name the engine and the model."""
    common = {"engine": "sglang", "model": name, "tp": 1, "layers": given.layers, "mode": "graph"}
    common |= {"note": given.note} if given.note else {}
    stem = f"{name}-tp1" + (f"-{given.layers}layers" if given.layers else "") + (f"-{given.note}" if given.note else "")
    file = (given.out / f"sglang-{stem}.jsonl").open("a")

    def write(kind: str, row: Row) -> None:
        file.write(json.dumps({"kind": kind, **common, **row}) + "\n")
        file.flush()
        brief = {key: value for key, value in row.items() if key not in ("samples_ms", "settings")}
        sys.stderr.write(f"{kind} {json.dumps(brief)[:300]}\n")

    return write


def facts(engine: Any, notes: Sequence[Row]) -> Row:
    """Settings that the engine chose and versions of what computes."""
    import sglang
    import torch

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    settings = {name: getattr(engine.server_args, name, None) for name in SETTINGS}
    found = {key: value for row in notes if row["mode"] == "facts" for key, value in row.items() if key != "mode"}
    return {
        "settings": {name: _plain(value) for name, value in settings.items()},
        **found,
        "card": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "versions": {"sglang": sglang.__version__, "torch": torch.__version__, "cuda": torch.version.cuda},
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def start(given: argparse.Namespace, folder: Path) -> Any:
    """A running engine whose scheduler notes its batches; its config lies in `folder`."""
    from sglang.srt.entrypoints import engine

    class Engine(engine.Engine):
        run_scheduler_process_func = staticmethod(scheduler.run)

    (folder / "config.json").write_text(json.dumps(config_of(given.model, given.layers)))
    chosen = ARGUMENTS | ({"mem_fraction_static": given.memory_fraction} if given.memory_fraction else {})
    return Engine(model_path=str(folder), log_level="info", **chosen)


def measure(given: argparse.Namespace) -> None:
    """Start the engine and time its points."""
    began = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pipewave-"))
    os.environ[scheduler.LOG] = str(folder / "steps.jsonl")
    engine = start(given, folder)
    notes = rows.NotesFile(folder / "steps.jsonl")
    write = writer(given, Setup(given.model).name)
    facts_found = facts(engine, notes.new())
    write("engine", {"load_s": round(time.monotonic() - began, 1), **facts_found})
    config = config_of(given.model, given.layers)
    run = Run(engine, notes, config.get("text_config", config)["vocab_size"], write)
    _each(run, facts_found, given, began)
    engine.shutdown()


def _each(run: Run, facts_found: Row, given: argparse.Namespace, began: float) -> None:
    """All points until time is up; one that fails is noted and the rest go on."""
    stairs = plan.staircases(facts_found["max_total_num_tokens"] or 1 << 18) if given.points != "prefill" else ()
    arrivals = plan.arrivals() if given.points != "decode" else ()
    order: Sequence[Arrival | Staircase] = (*arrivals[:5], *stairs[:1], *arrivals[5:], *stairs[1:])
    for point in order:
        if time.monotonic() - began > given.budget_s:
            return
        try:
            run.arrival(point) if isinstance(point, Arrival) else run.staircase(point)
        except FAILURES as error:
            sys.stderr.write(f"failed {point}: {type(error).__name__}: {error}\n"[:600])


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = options(argv)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    measure(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())

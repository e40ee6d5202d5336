"""Answers that change what was asked without a word: `python -m qa.chaos.silent`.

Every GPU × family × named software × type is asked. An answer that comes from another version or another kernel than
was named, from software that was measured on other GPUs only, or that a calibration touched, must say so in its notes.
Whole models are asked of engine versions that were never measured; estimates, served traffic, plans, steps and traces
under a calibration.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qa.chaos import made

CASES: dict[str, dict[str, Any]] = {
    "gemm": {"m": 64, "n": 4096, "k": 4096},
    "attention": {"q_lens": [1] * 8, "kv_lens": [3000] * 8, "heads": 32, "kv_heads": 8, "head_dim": 128},
    "mla": {"q_lens": [1] * 8, "kv_lens": [3000] * 8, "heads": 16, "phase": "generation"},
    "fused_moe": {"tokens": 40, "experts": 64, "topk": 6, "hidden": 2048, "inter": 1408},
    "rmsnorm": {"rows": 500, "dim": 4096},
    "silu_and_mul": {"rows": 500, "dim": 4096},
    "all_reduce": {"bytes": 1 << 20, "world": 4},
    "all_to_all": {"bytes": 1 << 20, "world": 4},
}
STACKS = (None, "vllm-0.22.1", "vllm-0.19.0", "vllm-0.14.0", "vllm-0.10.2", "sglang-0.5.14", "sglang-0.5.6",
          "trtllm-1.3.0rc20", "trtllm-1.1.0", "torch-2.11")  # fmt: skip
TYPES = ("bf16", "fp16", "fp8", "int8", "nvfp4")
TRACE = Path(__file__).parents[2] / "data/measured/h200/traces/trace-Llama-3.1-8B-tp1-4layers-eager-prefill.json.gz"
ENGINES = ("vllm:0.10.2", "vllm:0.14.0", "sglang:0.5.6", "trtllm:1.1.0")
GPUS = ("H200", "L40S", "RTX 4090", "B300")


def kernels(gpus: tuple[str, ...] = ()) -> Iterator[tuple[str, bool, bool]]:
    """(what was asked, whether the answer changes it, whether it says so) of single calls, by default on
    every GPU.
    """
    import pipewave as pw
    from pipewave.calls.families import from_dict
    from pipewave.gpus import names

    asked = ((f, g, s, t) for f in CASES for g in gpus or sorted(names()) for s in STACKS for t in TYPES)
    for family, gpu, stack, dtype in asked:
        case = CASES[family] | {"kernel": family, "dtype": dtype} | ({"stack": stack} if stack else {})
        try:
            found = pw.predict(from_dict(case), gpu)
        except pw.PipewaveError:
            continue
        moved = stack is not None and (found.stack != stack or found.software != "measured")
        yield f"{family} {dtype} {stack} on {gpu}", moved, bool(found.notes)


def models() -> Iterator[tuple[str, bool, bool]]:
    """Whole models, of engine versions without rows and under a calibration."""
    import pipewave as pw

    for gpu in GPUS:
        for engine in ENGINES:
            found = pw.estimate("Llama-3.1-8B", gpu, batch=4, input_len=512, output_len=8, engine=engine)
            asked = engine.replace(":", "-")
            yield f"estimate {engine} on {gpu}", True, any(asked in note for note in found.notes)


def calibrated() -> Iterator[tuple[str, bool, bool]]:
    """Answers that differ with a calibration in place."""
    import os

    import pipewave as pw
    from pipewave.models import load
    from pipewave.nets.calibration.corrections import VARIABLE
    from pipewave.published.answers import deploy, served
    from pipewave.published.unstated import Stated
    from pipewave.simulate.setup import Setup
    from pipewave.simulate.traffic import synthetic

    traffic = synthetic(8, input_len=512, output_len=8, concurrency=4)
    stated = Stated(load("Llama-3.1-8B"), made.GPU, Setup())
    runner = deploy(stated, traffic).engines.decode.runner

    def answers() -> dict[str, tuple[float, tuple[str, ...]]]:
        call = pw.predict(pw.gemm(512, 4096, 4096, **made.SOFTWARE), made.GPU)
        whole = pw.estimate("Llama-3.1-8B", made.GPU, batch=4, input_len=512, output_len=8)
        found = served(deploy(stated, traffic)).answer
        step = runner.steps([runner.batch([512], [512])])
        plan = pw.plan("Llama-3.1-8B", made.GPU, isl=512, osl=8).to_dict()
        traced = pw.trace(TRACE, gpu=made.GPU)
        return {
            "gemm": (call.latency_us, call.notes),
            "estimate": (whole.prefill_ms, whole.notes),
            "serve": (found["ttft_mean_ms"], tuple(found["notes"])),
            "plan": (plan["winner"]["ttft_ms"], tuple(plan["notes"])),
            "step": (float(step.total_us[0]), step.notes),
            "trace": (sum(entry.latency_us for entry in traced.entries), traced.notes),
        }

    plain = answers()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = str(made.calibration(Path(folder) / "h200.safetensors"))
        touched = answers()
        del os.environ[VARIABLE]
    for name, (value, notes) in touched.items():
        yield f"{name} with a calibration", value != plain[name][0], any("calibrat" in note for note in notes)


def run() -> dict[str, Any]:
    """Figures over all of them."""
    counts: Counter[str] = Counter()
    silent: list[str] = []
    for part in (kernels, models, calibrated):
        for what, moved, says in part():
            counts["asked"] += 1
            counts["changed"] += moved
            if moved and not says:
                silent.append(what)
    return {**counts, "silent": len(silent), "examples": silent[:12]}


if __name__ == "__main__":
    found = run()
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["silent"] else 0)

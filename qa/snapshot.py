"""Answers before and after a change of the code: `python -m qa.snapshot make|compare --dir DIR [--count 20000]`.

`make` writes seeded cases of every family, GPU, protocol and type, and their answers by the public command; newer
operators' in a file of their own (`--operators`), and estimates of whole models too. `compare` answers the same cases
again and lists every field that moved by more than one part in a million, by family, so that a change of structure can
show that it changed nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipewave.gpus import find, names
from qa import snapshot_operators

TOLERANCE = 1e-6
OPERATORS = "operators"  # file of newer operators' cases; records from before it have none
PROTOCOLS = ("cold", "serving", "graph", "profiler_warm")
TYPES = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4")
STACKS = (None, None, None, "vllm-0.22.1", "vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20")
HEADS = ((32, 8), (8, 1), (64, 8), (40, 8), (28, 4), (16, 16), (1, 1), (96, 8))
EXPERTS = ((8, 2, 4096, 14336), (128, 8, 2048, 768), (256, 8, 7168, 2048), (64, 6, 2048, 1408), (60, 4, 2048, 1408))
ROUTINGS = ("random", "balanced", "uniform", "power_law_1.2")
MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3", "Mixtral-8x7B", "Qwen2.5-14B")


def size(pick: random.Random, low: int, high: int, step: int = 1) -> int:
    """A size that is uniform in its logarithm."""
    return max(low, round(low * math.pow(high / low, pick.random()) / step) * step)


def gemm(pick: random.Random) -> dict[str, Any]:
    """A matrix product."""
    m, n, k = size(pick, 1, 65536), size(pick, 64, 65536, 64), size(pick, 64, 32768, 64)
    return {"m": m, "n": n, "k": k} | ({"quantize": True} if pick.random() < 0.3 else {})


def lengths(pick: random.Random) -> dict[str, Any]:
    """Requests in prefill, decode or both."""
    requests, cached = pick.choice((1, 1, 2, 4, 8, 32, 128)), size(pick, 16, 32768)
    mode, vary = pick.choice(("prefill", "decode", "mixed")), pick.random() < 0.5
    kv = [max(1, round(cached * (pick.uniform(0.3, 1.7) if vary else 1))) for _ in range(requests)]
    new = {"prefill": kv, "decode": [1] * requests, "mixed": [k if i == 0 else 1 for i, k in enumerate(kv)]}
    return {"q_lens": new[mode], "kv_lens": kv}


def attention(pick: random.Random) -> dict[str, Any]:
    """Attention with its options, each now and then."""
    heads, kv_heads = pick.choice(HEADS)
    case = lengths(pick) | {"heads": heads, "kv_heads": kv_heads, "head_dim": pick.choice((64, 128, 128, 192, 256))}
    rare = {"window": 1024, "kv_dtype": "fp8", "page_size": 16, "sinks": True, "softcap": 30.0, "causal": False}
    return case | {name: value for name, value in rare.items() if pick.random() < 0.15}


def mla(pick: random.Random) -> dict[str, Any]:
    """Latent attention of either phase."""
    case = lengths(pick)
    phase = "generation" if set(case["q_lens"]) == {1} else "context"
    return case | {"heads": pick.choice((16, 32, 64, 128)), "phase": phase}


def fused_moe(pick: random.Random) -> dict[str, Any]:
    """Routed experts."""
    experts, topk, hidden, inter = pick.choice(EXPERTS)
    shard = pick.choice(({}, {"tp": 2}, {"ep": 4}, {"tp": 4}))
    case = {"tokens": size(pick, 1, 32768), "experts": experts, "topk": topk, "hidden": hidden, "inter": inter}
    return case | shard | {"routing": pick.choice(ROUTINGS), "part": pick.choice(("all", "all", "w13", "w2"))}


def rows(pick: random.Random) -> dict[str, Any]:
    """Row-wise kernels."""
    return {"rows": size(pick, 1, 65536), "dim": size(pick, 64, 32768, 64)}


def collective(pick: random.Random) -> dict[str, Any]:
    """A collective within a node or over two."""
    world = pick.choice((2, 4, 8, 16))
    return {"bytes": size(pick, 256, 1 << 30, 16), "world": world, "nodes": max(1, world // 8)}


def elementwise(pick: random.Random) -> dict[str, Any]:
    """Streamed bytes."""
    return {"bytes_read": size(pick, 16, 1 << 30), "bytes_written": size(pick, 16, 1 << 30)}


FAMILIES = {
    "gemm": gemm, "attention": attention, "mla": mla, "fused_moe": fused_moe, "rmsnorm": rows, "silu_and_mul": rows,
    "elementwise": elementwise, "all_reduce": collective, "all_gather": collective, "reduce_scatter": collective,
    "all_to_all": collective, "send_recv": collective,
}  # fmt: skip
WEIGHTS = (5, 5, 2, 4, 1, 1, 1, 1, 1, 1, 1, 1)


def cases(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Seeded cases; types that a GPU cannot run are asked for too, since errors are answers."""
    pick, gpus = random.Random(seed), sorted(names())
    for i in range(count):
        family = pick.choices(list(FAMILIES), WEIGHTS)[0]
        gpu, protocol, stack = gpus[i % len(gpus)], pick.choice(PROTOCOLS), pick.choice(STACKS)
        dtype = pick.choice(TYPES if family in ("gemm", "fused_moe") else ("bf16", "fp16", "fp8"))
        case = FAMILIES[family](pick) | {"kernel": family, "gpu": gpu, "protocol": protocol, "dtype": dtype, "id": i}
        yield case | ({"stack": stack} if stack else {})


def estimates() -> Iterator[list[str]]:
    """Arguments of `pipewave estimate`."""
    for model in MODELS:
        for gpu, tp in (("H100", 8), ("H200", 8), ("B200", 4), ("A100", 8)):
            for engine, batch, length in (("vllm", 16, 2048), ("sglang", 4, 512)):
                tensor = "8" if model == "DeepSeek-V3" else str(tp if model != "Llama-3.1-8B" else 1)
                yield [
                    "--model", model, "--gpu", find(gpu).name, "--tp", tensor, "--engine", engine,
                    "--batch", str(batch), "--input-len", str(length), "--output-len", "64", "--json",
                ]  # fmt: skip


def answer(folder: Path, name: str) -> None:
    """Answer the cases of a folder into `name`.jsonl and `name`-estimates.jsonl."""
    command = [sys.executable, "-m", "pipewave"]
    subprocess.run([*command, "predict", "--cases", folder / "cases.jsonl", "--out", folder / f"{name}.jsonl"])
    if (asked := folder / f"{OPERATORS}.jsonl").exists():
        subprocess.run([*command, "predict", "--cases", asked, "--out", folder / f"{name}-{OPERATORS}.jsonl"])
    with (folder / f"{name}-estimates.jsonl").open("w") as out:
        for arguments in estimates():
            done = subprocess.run([*command, "estimate", *arguments], capture_output=True, text=True)
            answered = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip()}
            out.write(json.dumps({"id": " ".join(arguments), "kernel": "estimate"} | answered) + "\n")


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of a nested answer by dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from flat(inner, f"{name}[{i}]")
    else:
        yield name, value


def moved(old: Any, new: Any) -> float:
    """How far a field moved: relative for numbers, infinite for anything else that differs."""
    if old == new:
        return 0.0
    if isinstance(old, int | float) and isinstance(new, int | float):
        return abs(new - old) / max(abs(old), 1e-12)
    return float("inf")


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compare(folder: Path, old: str, new: str) -> int:
    """Print what moved, by kernel and field; the number of cases that moved."""
    asked = [OPERATORS] * (folder / f"{old}-{OPERATORS}.jsonl").exists()
    kernels = [one for name in ("cases", *asked) for one in _lines(folder / f"{name}.jsonl")]
    parts = ("", *(f"-{name}" for name in asked), "-estimates")
    before, after = ([one for part in parts for one in _lines(folder / f"{name}{part}.jsonl")] for name in (old, new))
    worst: dict[tuple[str, str], tuple[float, Any]] = {}
    cases_moved: Counter[str] = Counter()
    for i, (one, other) in enumerate(zip(before, after, strict=True)):
        kernel = kernels[i]["kernel"] if i < len(kernels) else "estimate"
        now = dict(flat(other))
        far = {name: moved(value, now.get(name)) for name, value in flat(one)}
        far = {name: by for name, by in far.items() if by > TOLERANCE}
        cases_moved[kernel] += bool(far)
        for name, by in far.items():
            if by > worst.get((kernel, name), (0.0, None))[0]:
                worst[kernel, name] = (by, one["id"])
    for (kernel, name), (by, which) in sorted(worst.items(), key=lambda item: -item[1][0])[:60]:
        print(f"{kernel:15} {name:40} {by:10.3g}  {which}")
    print(f"{sum(cases_moved.values())} of {len(before)} moved: {dict(+cases_moved)}")
    return sum(cases_moved.values())


def main() -> int:
    """Make or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "compare"))
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--operators", type=int, default=3_000, help="cases of newer operators beside them")
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    if options.what == "make":
        lines = (json.dumps(case) + "\n" for case in cases(options.count, options.seed))
        (options.dir / "cases.jsonl").write_text("".join(lines))
        newer = (json.dumps(case) + "\n" for case in snapshot_operators.cases(options.operators, options.seed))
        (options.dir / f"{OPERATORS}.jsonl").write_text("".join(newer))
        answer(options.dir, "before")
        return 0
    answer(options.dir, "after")
    return 1 if compare(options.dir, "before", "after") else 0


if __name__ == "__main__":
    sys.exit(main())

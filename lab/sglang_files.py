"""SGLang with its own fused-MoE files and with ours: `python -m lab.sglang_files --files DIR --out FILE`.

Two engines share the GPU, one as it is installed, one with `SGLANG_MOE_CONFIG_DIR` (files of `pipewave tune engine
sglang --model Qwen3-30B-A3B --out DIR`). Batches of four prompts of 512 to 16,384 tokens go to one and to the other in
turn, while the other one idles; times are from the arrival of a batch in an idle engine to its last first token. The
first batch of a length does not count. `--layers`: of the model, so that two fit. Needs SGLang and a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.in_turns import Served, compared
from lab.sglang_served import started

MODEL = "Qwen3-30B-A3B"
PROMPTS = (512, 1024, 2048, 4096, 8192, 16384)
BATCH, ROUNDS = 4, 7
PORT = 30_000
VARIANTS = ("default", "ours")
KV_TOKENS = BATCH * PROMPTS[-1] + 4096
SHARED = {"mem_fraction_static": 0.92, "max_total_tokens": KV_TOKENS, "cuda_graph_max_bs_decode": BATCH}


def serve(port: int, layers: int | None) -> None:
    """Start an engine, say so, and answer lengths until the input ends. Answers go to the standard output alone."""
    with started(MODEL, layers, port, SHARED) as (run, say):
        for text in sys.stdin:
            batches, _, taken = run._generate(BATCH, int(text), [1] * BATCH)
            prefills = [row for row in batches if row["mode"] == "prefill"]
            ms = 1e3 * (prefills[-1]["ended_s"] - prefills[0]["queued_s"])
            say({"ms": ms, "generate_ms": taken})


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--serve", type=int, help="what each engine's process runs, beside this port")
    options = parser.parse_args(argv)
    if options.serve:
        serve(options.serve, options.layers or None)
        return
    if options.files is None or options.out is None:
        parser.error("--files and --out are needed")
    began = time.monotonic()
    folder = options.out.parent
    command = [sys.executable, "-m", "lab.sglang_files", "--layers", str(options.layers), "--serve"]
    ours = {"SGLANG_MOE_CONFIG_DIR": str(options.files.resolve())}
    engines = [Served(name, [*command, str(PORT + 2000 * i)], env, folder / f"sglang-{name}.log")
               for i, (name, env) in enumerate(zip(VARIANTS, ({}, ours), strict=True))]  # fmt: skip
    try:
        facts = [one.line() for one in engines]
        found: dict[str, Any] = {"model": MODEL, "layers": options.layers, "engine": facts[0],
                                 "start_s": round(time.monotonic() - began, 1), "rows": []}  # fmt: skip
        for length in PROMPTS:
            row = {"input_len": length, "batch": BATCH, **compared(engines, length, ROUNDS)}
            found["rows"].append(row)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            print(length, row["ms"], row["speed_up"], flush=True)
    finally:
        for engine in engines:
            engine.close()


if __name__ == "__main__":
    main()

"""What compiling a small Triton kernel once more takes: `python -m lab.compile_cost --write`.

SGLang scales the queries and keys of a delta net's prompts to unit length with a kernel that has the number of rows as
a compile-time constant (0.5.2 to 0.5.14 srt/layers/attention/fla/l2norm.py: T and NB are `tl.constexpr`; fla/chunk.py
and fla/kda.py call it). So every number of tokens that a server's prompt steps had not held before compiles it, and the
GPUs wait. This program compiles a kernel that does the same, for one number of rows after another: CPU time of the
compiler and of the assembler it starts, whatever else the machine does. No GPU is needed, but Triton 3.5 or 3.6 is, as
in SGLang's images. The medians go into `software/sglang.json` as `compile_us`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

RESULTS = Path(__file__).parents[1] / "studies" / "results" / "compile_cost.json"
CAPABILITIES = (90, 100)  # Hopper, data-centre Blackwell
HEADS, WIDTH, TILE, BLOCK = 8, 128, 16, 2048
FIRST_TOKENS = 900


def cpu_s() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def unit_rows(x, y, eps, BLOCKS, ROWS, WIDTH, TILE):  # type: ignore[no-untyped-def]  # noqa: ARG001  as SGLang's
    """Rows of `x` over their lengths."""
    place = tl.program_id(0) * TILE
    read = tl.make_block_ptr(x, (ROWS, WIDTH), (WIDTH, 1), (place, 0), (TILE, WIDTH), (1, 0))
    row = tl.load(read, boundary_check=(0, 1)).to(tl.float32)
    unit = row / tl.sqrt(tl.sum(row * row, axis=1) + eps)[:, None]
    kept = tl.make_block_ptr(y, (ROWS, WIDTH), (WIDTH, 1), (place, 0), (TILE, WIDTH), (1, 0))
    tl.store(kept, unit.to(kept.dtype.element_ty), boundary_check=(0, 1))


def compiled_ms(capability: int, tokens: int) -> float:
    """CPU ms of compiling the kernel for so many tokens."""
    rows = HEADS * tokens
    constants = {"BLOCKS": -(-rows // BLOCK), "ROWS": rows, "WIDTH": WIDTH, "TILE": TILE}
    kinds = {"x": "*bf16", "y": "*bf16", "eps": "fp32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=triton.jit(unit_rows), signature=kinds, constexprs=constants)
    began = cpu_s()
    triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8, "num_stages": 3})
    return 1e3 * (cpu_s() - began)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        for capability in CAPABILITIES:
            compiled_ms(capability, FIRST_TOKENS)  # the first loads the compiler
            sizes = range(FIRST_TOKENS + 1, FIRST_TOKENS + 1 + options.times)
            found[str(capability)] = round(statistics.median(compiled_ms(capability, tokens) for tokens in sizes), 1)
    print("\n".join(f"compute capability {name}: {ms:.0f} ms" for name, ms in found.items()))
    if options.write:
        RESULTS.write_text(json.dumps({"triton": triton.__version__, "ms": found}) + "\n", "utf-8")


if __name__ == "__main__":
    main()

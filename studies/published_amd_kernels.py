"""Published kernels of frameworks on the MI300X against answers: `python -m studies.published_amd_kernels [--write]`.

Answers are of calls in a step (`serving`); products are asked without a kernel that quantises. Ratios are geometric
means of answered over measured time: below 1 is answered too fast. No constant is fitted to these rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipewave.calls.families import Call, Gemm, RmsNorm, SiluAndMul
from pipewave.prediction.api import predict

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "data" / "published" / "amd_kernels.yaml"
PAGE = ROOT / "docs" / "generated" / "amd_kernels.md"
GPU = "MI300X"
HEAD = ("kernels", "rows", "answered / framework's", "answered / best", "least", "most", "inside 90 %")
CALLS: Mapping[str, Callable[[Mapping[str, Any]], Call]] = {
    "gemm": lambda row: Gemm(row["m"], row["n"], row["k"], dtype="fp8", quantize=False),
    "rmsnorm": lambda row: RmsNorm(row["rows"], row["dim"], fused_add=True),
    "silu_and_mul": lambda row: SiluAndMul(row["rows"], row["dim"]),
}


def compared(group: Mapping[str, Any]) -> list[str]:
    """A line of the table: how answers to a group's calls stand to what was measured."""
    rows = group["rows"]
    found = predict([CALLS[group["kind"]](row) for row in rows], GPU, protocol="serving")
    us, best = (np.array([row[name] for row in rows]) for name in ("us", "best"))
    ratio = found.latency_us / us
    inside = np.mean((found.low_us <= us) & (us <= found.high_us))
    figures = (np.exp(np.log(ratio).mean()), np.exp(np.log(found.latency_us / best).mean()), ratio.min(), ratio.max())
    return [group["kernels"], str(len(rows)), *(f"{figure:.2f}" for figure in figures), f"{100 * inside:.0f}"]


def page() -> str:
    """The table of docs/amd.md."""
    lines = [list(HEAD), ["---"] + ["---:"] * (len(HEAD) - 1)]
    lines += [compared(group) for group in yaml.safe_load(ROWS.read_text("utf-8"))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, and write it with `--write`."""
    parser = argparse.ArgumentParser(prog="python -m studies.published_amd_kernels", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table of docs/amd.md")
    options = parser.parse_args(argv)
    table = page()
    print(table)
    if options.write:
        PAGE.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()

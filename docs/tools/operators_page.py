"""`python -m docs.tools.operators_page [--write]`: errors of docs/operators.md, from the tables of held-out rows."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE, TABLES = ROOT / "docs" / "operators.md", ROOT / "train" / "tables"
KERNELS = TABLES / "unseen_kernels.json"
BEGIN, END = "<!-- errors -->", "<!-- /errors -->"
NETS = {
    "gdn_context": "gated delta net, scan",
    "gdn_step": "gated delta net, step",
    "kda_context": "Kimi delta attention, scan",
    "kda_step": "Kimi delta attention, step and verification",
    "causal_conv1d": "short convolution",
    "dsa_context": "DSA module, context",
    "dsa_generation": "DSA module, generation",
    "msa_context": "MSA module, context",
    "msa_generation": "MSA module, generation",
    "compressed_context": "CSA and HCA modules, context",
    "compressed_generation": "CSA and HCA modules, generation",
    "mla_module_context": "MLA module, context",
    "mla_module_generation": "MLA module, generation",
    "index_scores": "indexer scores",
    "index_topk": "top-k",
    "sparse_attention": "sparse attention alone",
    "hyper_connection": "hyper-connections",
    "moe_all_to_all": "dispatch and combine",
    "mega_moe": "MegaMoE",
    "batched_gemm": "MLA's absorbed products",
}
HEAD = (
    *("operator", "unseen shapes %", "inside 90 %", "GPU left out %", "inside 90 %", "by GPU left out %"),
    *("kernels measured elsewhere %", "inside 90 %", "never measured %", "inside 90 %"),
)


def line(name: str, table: dict[str, Any], kernels: dict[str, dict[str, float]]) -> list[str]:
    """One operator: mean errors over GPUs and types, and the share of rows inside their intervals; with a GPU left out,

    also over kernels that rows of other GPUs hold, and over those that none does.
    """
    cells = [NETS[name]]
    for kind in ("fold", "logo"):
        mean = table.get(kind, {}).get("macro mean")
        cells += [f"{mean['mape']:.1f}", f"{_inside(kind, mean, kernels):.0f}"] if mean else ["–", "–"]
    gpus: dict[str, list[float]] = {}
    for cell, found in table.get("logo", {}).items():
        if cell != "macro mean":
            gpus.setdefault(cell.partition(" · ")[0], []).append(found["mape"])
    cells.append(", ".join(f"{gpu} {sum(all_) / len(all_):.0f}" for gpu, all_ in gpus.items()) or "–")
    for kind in ("known", "unseen"):
        found = kernels.get(kind)
        cells += [f"{found['mape']:.1f}", f"{found['covered']:.0f}"] if found else ["–", "–"]
    return cells


def _inside(kind: str, mean: dict[str, float], kernels: dict[str, dict[str, float]]) -> float:
    """Share inside, %; with a GPU left out, kernels that no other GPU's rows hold have the interval of such kernels."""
    return kernels["all"]["covered"] if kind == "logo" and "all" in kernels else mean["coverage"]


def markdown() -> str:
    """The table of all operators that were trained."""
    files = {name: TABLES / f"{name}.graph.json" for name in NETS}
    kernels = json.loads(KERNELS.read_text("utf-8"))["nets"]
    found = {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.exists()}
    rows = [line(name, table, kernels.get(name, {})) for name, table in found.items()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (HEAD, ["---"] * len(HEAD), *rows))


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.tools.operators_page", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into the page")
    table = markdown()
    if parser.parse_args(argv).write:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    else:
        print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

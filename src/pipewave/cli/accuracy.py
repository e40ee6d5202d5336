"""`pipewave accuracy`: published errors of the shipped weights on shapes that they never saw."""

from __future__ import annotations

from typing import Annotated

from pipewave.cli.command import Option
from pipewave.cli.streams import show

TITLES = {"own": "Our H200 rows, shapes never trained on", "public": "Public corpus, shapes never trained on"}
HEADINGS = {
    "family": "family",
    "dtype": "type",
    "gpu": "GPU",
    "software": "stack, implementation",
    "protocol": "protocol",
    "rows": "rows",
    "mape": "MAPE %",
    "median": "median %",
    "bias": "bias %",
    "coverage": "in 90 %",
    "slower": "over ceiling %",
}


def accuracy(
    json: Annotated[bool, Option("--json", help="Print JSON, with every figure of every cell.")] = False,
) -> None:
    """Show how far the shipped weights are off on rows of shapes they never saw, without calibration."""
    from pipewave.files import packaged

    parts = packaged.document(packaged.ROOT / "data" / "accuracy" / "figures.json")["parts"]
    if json:
        show([{"part": part} | row for part, cells in parts.items() for row in cells], "json", schema="cells")
        return
    for part, cells in parts.items():
        rows = [{**row, "software": f"{row['stack']} {row['impl']}"} for row in cells]
        show([{head: row[name] for name, head in HEADINGS.items()} for row in rows], "table", title=TITLES[part])

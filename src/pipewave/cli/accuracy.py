"""`pipewave accuracy`: published errors of the shipped weights on shapes that they never saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pipewave.cli.command import Option

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
) -> int:
    """Show how far the shipped weights are off on rows of shapes they never saw, without calibration."""
    from pipewave.cli.streams import show
    from pipewave.files import packaged

    parts = packaged.document(packaged.ROOT / "data" / "accuracy" / "figures.json")["parts"]
    if json:
        show([{"part": part} | row for part, cells in parts.items() for row in cells], "json", schema="cells")
        return 0
    for part, cells in parts.items():
        show([_short(row) for row in cells], "table", title=TITLES[part])
    return 0


def _short(row: Mapping[str, object]) -> dict[str, object]:
    shown = {**row, "software": f"{row['stack']} {row['impl']}"}
    return {heading: shown[name] for name, heading in HEADINGS.items()}

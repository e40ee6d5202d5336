"""`pipewave accuracy`: the held-out evaluation, offline, and whether its published figures still hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pipewave.cli.command import Option
from pipewave.cli.streams import say

if TYPE_CHECKING:
    from pipewave.evaluate.figures import Cells

TITLES = {"own": "Our H200 rows, shapes never trained on", "public": "Public corpus, shapes never trained on"}
LEFT_OUT = "Members trained without what they are scored on"
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
    data: Annotated[Path | None, Option(help="Also score this public corpus (checkout and [train]).")] = None,
    splits: Annotated[bool, Option(help="Show GPUs and families left out in training (checkout).")] = False,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    check: Annotated[bool, Option("--check", help="Exit 1 when a published figure drifts.")] = False,
    write: Annotated[bool, Option("--write", help="Make these the published figures.")] = False,
    figures: Annotated[Path | None, Option(help="File of published figures; default: the package's.")] = None,
) -> int:
    """Score the shipped weights on rows of shapes they never saw, without calibration."""
    from pipewave.evaluate.figures import read
    from pipewave.evaluate.rows import cases, shipped, shipped_folder
    from pipewave.evaluate.score import score

    parts: dict[str, Cells] = {"own": score(cases(shipped()))}
    if data is not None:
        from pipewave.evaluate.public import rows

        parts["public"] = score(rows(data))
    _show(parts, splits, "json" if json else "table")
    path = figures or shipped_folder() / "figures.json"
    committed = read(path)
    if write:
        from pipewave.evaluate.figures import write as save

        save(path, committed | parts)
    elif check:
        return _checked(committed, parts)
    return 0


def _show(parts: Mapping[str, Cells], splits: bool, form: str) -> None:
    """JSON has every figure of every cell; a table those that fit a terminal."""
    from pipewave.cli.render import show
    from pipewave.evaluate.figures import table
    from pipewave.evaluate.splits import table as held_out

    left_out = [{"part": "splits"} | row for row in held_out()] if splits else []
    if form == "json":
        cells = [{"part": part} | row for part, found in parts.items() for row in table(found)]
        show([*cells, *left_out], form, schema="cells")
        return
    for part, found in parts.items():
        show([_short(row) for row in table(found)], form, title=TITLES[part])
    if left_out:
        show([{name: value for name, value in row.items() if name != "part"} for row in left_out], form, title=LEFT_OUT)


def _short(row: Mapping[str, object]) -> dict[str, object]:
    shown = {**row, "software": f"{row['stack']} {row['impl']}"}
    return {heading: shown[name] for name, heading in HEADINGS.items()}


def _checked(committed: Mapping[str, Cells], parts: Mapping[str, Cells]) -> int:
    """Say what drifted on standard error; 1 when anything did."""
    from pipewave.evaluate.figures import drifts

    lines = [line for part, cells in parts.items() for line in drifts(committed.get(part, {}), cells)]
    for line in lines:
        say(line)
    return 1 if lines else 0

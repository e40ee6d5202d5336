"""`pipewave accuracy`: the held-out evaluation, offline, and whether its published figures still hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipewave.accuracy.figures import Cells

TITLES = {"own": "Our H200 rows, shapes never trained on", "public": "Public corpus, shapes never trained on"}
HEADINGS = {
    "mape": "MAPE %",
    "median": "median %",
    "bias": "bias %",
    "coverage": "in 90 %",
    "slower": "slower than ceiling %",
    "below_floor": "below floor",
    "over_floor": "over floor",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("accuracy")(accuracy)


def accuracy(
    data: Annotated[Path | None, typer.Option(help="Also score this public corpus (checkout and [train]).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a published figure drifts.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Make these the published figures.")] = False,
    figures: Annotated[Path | None, typer.Option(help="File of published figures; default: the package's.")] = None,
) -> None:
    """Score the shipped weights on rows of shapes they never saw, without calibration."""
    from pipewave.accuracy.figures import read, table
    from pipewave.accuracy.rows import cases, shipped, shipped_folder
    from pipewave.accuracy.score import score
    from pipewave.cli.render import show

    parts: dict[str, Cells] = {"own": score(cases(shipped()))}
    if data is not None:
        from pipewave.accuracy.public import rows

        parts["public"] = score(rows(data))
    if json:
        show([{"part": part} | row for part, cells in parts.items() for row in table(cells)], "json", schema="cells")
    else:
        for part, cells in parts.items():
            named = [{HEADINGS.get(name, name): value for name, value in row.items()} for row in table(cells)]
            show(named, "table", title=TITLES[part])
    path = figures or shipped_folder() / "figures.json"
    committed = read(path)
    if write:
        from pipewave.accuracy.figures import write as save

        save(path, committed | parts)
    elif check:
        raise typer.Exit(_checked(committed, parts))


def _checked(committed: Mapping[str, Cells], parts: Mapping[str, Cells]) -> int:
    """Say what drifted on standard error; 1 when anything did."""
    from pipewave.accuracy.figures import drifts

    lines = [line for part, cells in parts.items() for line in drifts(committed.get(part, {}), cells)]
    for line in lines:
        typer.echo(line, err=True)
    return 1 if lines else 0

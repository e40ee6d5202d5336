"""`pipewave calibrate`: correct the shipped model for a card from its own measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate")(calibrate)


def calibrate(
    store: Annotated[Path, typer.Option(help="Rows of `pipewave measure`: its store, a packed file or a folder.")],
    gpu: Annotated[str, typer.Option(help="The GPU they were measured on: a name, or its spec file.")],
    out: Annotated[Path | None, typer.Option(help="Where to save; default: where predictions look for it.")] = None,
    format: Annotated[str, typer.Option(help="table, json or csv.")] = "table",
) -> None:
    """Correct predictions for your card from as few as 30 rows of it.

    The error after is of rows whose whole group was left out. Predictions for that GPU, from the software that was
    measured, use the calibration from then on and say so; `PIPEWAVE_CALIBRATION=off` turns it off, and names a file or
    folder otherwise.
    """
    from pipewave.calibrate.run import calibrate as run
    from pipewave.cli.render import check_format, show

    form = check_format(format)
    report = run(store, gpu, out=out)
    show(report.table(), form, title=f"Calibration of {report.gpu}", schema="calibration")
    for (net, protocol), rows in sorted(report.too_few.items()):
        typer.echo(f"{net} ({protocol}): {rows} rows are too few, left as it is", err=True)
    if report.skipped:
        typer.echo(f"{report.skipped} rows of kernels that cannot be predicted were skipped", err=True)
    if report.late:
        typer.echo(f"{report.late} collectives that waited for a late rank were left out", err=True)
    typer.echo(f"saved to {report.path}", err=True)

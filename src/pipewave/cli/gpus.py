"""`pipewave gpus`: the cards that are known, and one card with the source of every field."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gpus")(gpus)


def gpus(
    name: Annotated[str | None, typer.Argument(help="GPU name, alias or spec file.", show_default=False)] = None,
    format: Annotated[str, typer.Option(help="table, json or csv.")] = "table",
) -> None:
    """List the GPUs, or show one with the source of every field (`pipewave gpus H200`)."""
    from pipewave.cli.render import check_format, show
    from pipewave.gpus.show import field_rows, summary_rows

    rows = field_rows(name) if name else summary_rows()
    show(rows, check_format(format), schema="fields" if name else "gpus")

"""`pipewave predict`: kernels on GPUs, one for people or a file of cases for programs."""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipewave.cli.streams import ended, open_stream
from pipewave.errors import BadInput, UnknownKernel, meant_or_known


class Families(TyperGroup):
    """One sub-command a family, built when one is asked for or listed: help of the whole command stays quick."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the families."""
        from pipewave.kernels import families

        return list(families())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words name; an unknown one is told the nearest that there is."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise UnknownKernel(
                f"unknown kernel {name!r}:{meant_or_known(name, self.list_commands(ctx))}", field="kernel"
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a family, None where there is none of that name."""
        from pipewave.kernels import families, revision

        return _built(cmd_name, revision()) if cmd_name in families() else None


@lru_cache(maxsize=32)
def _built(family: str, registry: int) -> Any:
    from pipewave.cli.families import command

    return command(family)


def register(app: typer.Typer) -> None:
    """Add `predict` with one sub-command a family."""
    text = "Latency of a kernel, or of every case in a file."
    group = typer.Typer(cls=Families, invoke_without_command=True, help=text)
    group.callback()(predict_cases)
    app.add_typer(group, name="predict")


def predict_cases(
    ctx: typer.Context,
    cases: Annotated[str | None, typer.Option(help="JSON-lines file of cases; - is standard input.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of the cases that name none.")] = None,
    out: Annotated[str, typer.Option(help="Where answers go; - is standard output.")] = "-",
) -> None:
    """Latency of a kernel (`predict gemm M N K --gpu H200`) or of a file (`predict --cases F --out G`)."""
    if ctx.invoked_subcommand is not None:
        return
    if cases is None:
        raise BadInput("name a kernel (pipewave predict gemm ...) or give --cases FILE", field="cases")
    from pipewave.gpus import find
    from pipewave.prediction.jsonl import answer_stream

    with ExitStack() as stack:
        source, sink = open_stream(stack, cases, "r"), open_stream(stack, out, "w")
        counts = answer_stream(source, sink, gpu=find(gpu) if gpu else None)
    raise typer.Exit(ended(counts.failed))

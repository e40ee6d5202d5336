"""`pipewave predict`: kernels on GPUs, one for people or a file of cases for programs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup

from pipewave.errors import BadFile, BadInput

GZIP = b"\x1f\x8b"


class Families(TyperGroup):
    """One sub-command a family, built when one is asked for or listed: help of the whole command stays quick."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the families."""
        return list(_families().commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a family, None where there is none of that name."""
        return _families().commands.get(cmd_name)


def _families() -> Any:
    from pipewave.kernels import revision

    return _built(revision())


@lru_cache(maxsize=1)
def _built(registry: int) -> Any:
    from pipewave.cli.families import build

    return typer.main.get_command(build())


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
        source, sink = _open(stack, cases, "r"), _open(stack, out, "w")
        counts = answer_stream(source, sink, gpu=find(gpu) if gpu else None)
    raise typer.Exit(1 if counts.failed else 0)


def _open(stack: ExitStack, path: str, mode: Literal["r", "w"]) -> TextIO:
    if path == "-":
        return sys.stdin if mode == "r" else sys.stdout
    try:
        encoding = "utf-8-sig" if mode == "r" else "utf-8"  # some editors begin a file with a mark of byte order
        file = stack.enter_context(Path(path).open(mode, encoding=encoding, errors="replace"))  # noqa: SIM115
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}", field="cases" if mode == "r" else "out") from error
    if mode == "r" and file.buffer.peek(2).startswith(GZIP):  # type: ignore[attr-defined]
        raise BadFile(f"{path} is compressed: gunzip -c {path} | pipewave predict --cases -", field="cases")
    return file

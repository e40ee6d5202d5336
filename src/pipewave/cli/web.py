"""`pipewave web` and `pipewave query`: the page on this machine, and its answers without a server."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

from pipewave.cli.command import Argument, Option
from pipewave.errors import extra
from pipewave.files import whole

PACKAGE = "'pipewave[web]'"


def web(
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8787,
    host: Annotated[str, Option(help="A loopback address; nothing else is served.")] = "127.0.0.1",
    opens: Annotated[bool, Option("--open/--no-open", help="Open a browser.")] = True,
) -> None:
    """Plan, serve, kernel and trace views in a browser, served to this machine only; works offline."""
    for name in ("fastapi", "uvicorn"):
        extra(name, "the page", PACKAGE)
    from pipewave.web.app import serve

    serve(host, port, opens=opens)


def query(
    view: Annotated[str, Argument(help="kernel, grid, serve, traffic, model, gpu or plan.")],
    question: Annotated[str, Argument(help="JSON as the page sends it; @FILE reads a file.")],
) -> None:
    """One answer of the page as JSON: sweeps of a kernel, and what-if GPUs, without a server.

    Example: `pipewave query serve '{"model": "Llama-3.1-8B", "gpu": "H200", "what_if": {"dram_gbps": 6000}, "batch":
    16, "input_len": 2048, "output_len": 256}'`.
    """
    from pipewave.web.queries import answer

    if question.startswith("@"):
        question = whole.read(Path(question[1:]), "question")
    print(answer(view, question))


def mcp() -> None:
    """Answers of the page as tools of the Model Context Protocol, over standard input and output.

    Nothing is written and no port is opened. Example: `claude mcp add pipewave -- pipewave mcp`.
    """
    extra("pydantic", "this command", PACKAGE)
    from pipewave.web.mcp import serve

    out = sys.stdout
    with redirect_stdout(sys.stderr):  # standard output holds messages only
        serve(sys.stdin, out)

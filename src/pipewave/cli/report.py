"""`pipewave report`: an estimate, a plan or a trace as one file to send to a colleague."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from pipewave.cli.command import Argument, Option
from pipewave.cli.streams import put
from pipewave.errors import BadInput

COMMANDS = ("estimate", "plan", "trace")


def report(
    what: Annotated[str, Argument(help="estimate, plan, trace (with their own options), or a saved answer.")],
    out: Annotated[str, Option(help="Where the report goes; - is standard output.")] = "-",
    form: Annotated[str, Option("--format", help="html or md; default: by the name of --out.")] = "",
    options: Annotated[list[str], Argument("Options of the command that answers.", rest=True)] = [],  # noqa: B006
) -> None:
    """One self-contained file, HTML or Markdown, of a plan, an estimate or a trace.

    Examples: `pipewave report estimate --model Llama-3.1-8B --gpu H200 --batch 16 --input-len 2048 --output-len 256
    --out report.html`; `pipewave report trace step.json.gz --model Llama-3.1-8B --out trace.html`;
    `pipewave report answer.json --format md`, where `answer.json` is what a command printed with `--json`.
    """
    from pipewave.view import check_form, read
    from pipewave.view import report as write

    chosen = check_form(form or ("md" if out.endswith(".md") else "html"))
    if what in COMMANDS:
        put(write(_answer([what, *options, "--json"]), chosen), out, *options)
    elif options or (not Path(what).exists() and not what.endswith(".json")):
        asked = " ".join([what, *options])
        raise BadInput(f"{asked}: must be {', '.join(COMMANDS)} or a file", field="what")
    else:
        put(write(read(Path(what)), chosen), out, what)


def _answer(words: Sequence[str]) -> Mapping[str, Any]:
    """What a command prints as JSON, and the command."""
    from pipewave.cli import build

    printed = io.StringIO()
    with redirect_stdout(printed):
        build().run(words)
    answer: dict[str, Any] = json.loads(printed.getvalue())
    return answer | {"command": shlex.join(["pipewave", *words])}

"""`pipewave report`: an estimate, a plan or a trace as one file to send to a colleague."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

# How each command is asked for JSON.
COMMANDS = {"estimate": ("--json",), "plan": ("--json",), "trace": ("--format", "json")}


def register(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("report", context_settings=settings)(report)


def report(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(help="estimate, plan, trace (with their own options), or a saved answer.")],
    out: Annotated[str, typer.Option(help="Where the report goes; - is standard output.")] = "-",
    form: Annotated[str, typer.Option("--format", help="html or md; default: by the name of --out.")] = "",
) -> None:
    """One self-contained file, HTML or Markdown, of a plan, an estimate or a trace.

    Examples: `pipewave report estimate --model Llama-3.1-8B --gpu H200 --batch 16 --input-len 2048 --output-len 256
    --out report.html`; `pipewave report trace step.json.gz --model Llama-3.1-8B --out trace.html`;
    `pipewave report answer.json --format md`, where `answer.json` is what a command printed with `--json`.
    """
    from pipewave.report.write import check_form, read
    from pipewave.report.write import report as write

    chosen = check_form(form or ("md" if out.endswith(".md") else "html"))
    answer = _json_of(ctx, what, ctx.args) if what in COMMANDS else read(_only(what, ctx.args))
    _put(write(answer, chosen), out)


def _json_of(ctx: typer.Context, command: str, options: Sequence[str]) -> Mapping[str, Any]:
    """What a command prints as JSON, asked with the options it was given here."""
    group: Any = ctx.find_root().command
    printed = io.StringIO()
    with redirect_stdout(printed):
        group.get_command(ctx, command).main(
            [*options, *COMMANDS[command]], f"pipewave {command}", standalone_mode=False
        )
    answer: dict[str, Any] = json.loads(printed.getvalue())
    return answer | {"command": _again(command, options)}


def _again(command: str, options: Sequence[str]) -> str:
    import shlex

    return shlex.join(["pipewave", command, *options, *COMMANDS[command]])


def _only(what: str, rest: Sequence[str]) -> Path:
    from pipewave.errors import BadInput

    if rest or (not Path(what).exists() and not what.endswith(".json")):
        raise BadInput(f"{what} {' '.join(rest)}".strip() + ": must be estimate, plan, trace or a file", field="what")
    return Path(what)


def _put(text: str, out: str) -> None:
    from pipewave.errors import BadFile, cause

    if out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise BadFile(f"{out}: cannot be written ({cause(problem)})", field="out") from problem

"""The command line: `pipewave COMMAND`. Rooms are imported when their command runs, so help stays quick."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated

import typer

from pipewave.cli.spelling import spelled
from pipewave.errors import PipewaveError

# Matrices here are small: more threads hardly help, and where a quota holds fewer cores than the host shows they wait
# for one another (read once, when numpy is imported; a value of the user's stays).
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))

COLLECTED_AFTER = 50_000  # new objects: looking for cycles among modules that load takes a fifteenth of a short command

app = typer.Typer(
    name="pipewave",
    help="How long a kernel, a model or a fleet takes on a GPU, what it could reach, and how to get there.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(asked: bool) -> None:
    if asked:
        from pipewave.version import VERSION

        print(f"pipewave {VERSION}")
        raise typer.Exit


@app.callback()
def everywhere(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """How long a kernel, a model or a fleet takes on a GPU, what it could reach, and how to get there."""


# One module a group of commands; each has register(app).
GROUPS = (
    "predict",
    "gpus",
    "model",
    "step",
    "estimate",
    "workload",
    "serve",
    "planning",
    "trace",
    "tune",
    "export",
    "measure",
    "calibrate",
    "accuracy",
    "report",
    "web",
)


def build() -> typer.Typer:
    """The application with every command registered."""
    if not app.registered_commands and not app.registered_groups:
        for name in GROUPS:
            import_module(f"pipewave.cli.{name}").register(app)
    return app


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and exit status 2."""
    if sys.stdout is None:
        raise SystemExit("error: standard output is closed" if sys.stderr else 2)
    gc.set_threshold(COLLECTED_AFTER)
    if isinstance(sys.stdout, TextIOWrapper):  # µ and bars where a file or a terminal knows other letters
        sys.stdout.reconfigure(errors="replace")
    try:
        build()(args=spelled(build(), sys.argv[1:]))
    except PipewaveError as error:
        where = f" [{error.field}]" if error.field else ""
        sys.stderr.write(f"error{where}: {error.message}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader of a pipe left; nothing is wrong
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:  # a full disk behind standard output, say
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None

"""`pipewave export` and `report`: answers as files, for other simulators and to send to a colleague."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Annotated

from pipewave.cli.command import Argument, Option
from pipewave.cli.options import TP, Gpu, Model
from pipewave.cli.streams import put, waiting
from pipewave.errors import BadInput, meant_or_known

# Where each simulator's files go by default: Vidur's mlp.csv, attention.csv, all_reduce.csv and send_recv.csv;
# LLMServingSim's <GPU>/<model>/<type>/; AIConfigurator's folder for --systems-paths; Dynamo's profile_results_dir, a
# folder for each of several degrees.
FOLDERS = {"vidur": "vidur-profiles", "llmservingsim": "perf", "aiconfigurator": "systems", "dynamo": "dynamo"}
COMMANDS = ("estimate", "plan", "trace")


def export_command(
    simulator: Annotated[str, Argument(help="vidur, llmservingsim, aiconfigurator or dynamo.")],
    model: Model,
    gpu: Gpu,
    tp: Annotated[str, Option(*TP, help="Tensor-parallel degrees, such as 1,2,4.")] = "1",
    out: Annotated[str, Option(help="Folder to write to; each simulator has its own by default.")] = "",
) -> None:
    """Write predictions in the form that other simulators read.

    Profiles of a model on a GPU as Vidur's or LLMServingSim's own profiler would write them, or tables of a GPU for a
    model as AIConfigurator (AISimulate) reads them, which needs pyarrow; prefill and decode sweeps of a worker for
    Dynamo's planner.

    Example: `pipewave export vidur --model Llama-3.1-8B --gpu H200 --tp 1,2 --out profiles`.
    """
    from pipewave.calls.fields import integers
    from pipewave.gpus import find
    from pipewave.models import load

    if simulator not in FOLDERS:
        raise BadInput(f"unknown simulator {simulator!r}:{meant_or_known(simulator, FOLDERS)}", field="simulator")
    export = import_module(f"pipewave.export.{simulator}").export
    with waiting(f"tables of {model} on {gpu}"):
        written = list(export(load(model), find(gpu), Path(out or FOLDERS[simulator]), tps=integers(tp, "tp")))
    for path in written:
        print(path)


def report(
    what: Annotated[str, Argument(help="estimate, plan, trace (with their own options), or a saved answer.")],
    out: Annotated[str, Option(help="Where the report goes; - is standard output.")] = "-",
    form: Annotated[str, Option("--format", help="html or md; default: by the name of --out.")] = "",
    options: Annotated[list[str], Argument(help="Options of the command that answers.", rest=True)] = [],  # noqa: B006
) -> None:
    """One self-contained file, HTML or Markdown, of a plan, an estimate or a trace.

    Examples: `pipewave report estimate --model Llama-3.1-8B --gpu H200 --batch 16 --input-len 2048 --output-len 256
    --out report.html`; `pipewave report trace step.json.gz --model Llama-3.1-8B --out trace.html`;
    `pipewave report answer.json --format md`, where `answer.json` is what a command printed with `--json`.
    """
    from pipewave.cli import build
    from pipewave.view import check_form, read
    from pipewave.view import report as write

    chosen = check_form(form or ("md" if out.endswith(".md") else "html"))
    if what in COMMANDS:
        words, printed = [what, *options, "--json"], io.StringIO()
        with redirect_stdout(printed):
            build().run(words)
        command = shlex.join(["pipewave", *words])
        put(write(json.loads(printed.getvalue()) | {"command": command}, chosen), out, *options)
    elif options or (not Path(what).exists() and not what.endswith(".json")):
        asked = " ".join([what, *options])
        raise BadInput(f"{asked}: must be {', '.join(COMMANDS)} or a file", field="what")
    else:
        put(write(read(Path(what)), chosen), out, what)

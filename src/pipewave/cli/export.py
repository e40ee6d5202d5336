"""`pipewave export`: predictions in the form that other simulators read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

from pipewave.cli.command import Group, Option
from pipewave.cli.options import TP, Gpu, Model
from pipewave.cli.streams import waiting

Degrees = Annotated[str, Option(*TP, help="Tensor-parallel degrees, such as 1,2,4.")]


def _write(export: Callable[..., Iterable[Path]], model: str, gpu: str, tp: str, out: Path) -> None:
    """Write one simulator's tables and name each file."""
    from pipewave.calls.fields import integers
    from pipewave.gpus import find
    from pipewave.models import load

    with waiting(f"tables of {model} on {gpu}"):
        written = list(export(load(model), find(gpu), out, tps=integers(tp)))
    for path in written:
        print(path)


def vidur(
    model: Model,
    gpu: Gpu,
    tp: Degrees = "1",
    out: Annotated[Path, Option(help="Folder for mlp.csv, attention.csv, all_reduce.csv and send_recv.csv.")] = Path(
        "vidur-profiles"
    ),
) -> None:
    """Profiles of a model on a GPU as Vidur's own profiler would write them.

    Example: `pipewave export vidur --model Llama-3.1-8B --gpu H200 --tp 1,2 --out profiles`.
    """
    from pipewave.export.vidur import export

    _write(export, model, gpu, tp, out)


def llmservingsim(
    model: Model,
    gpu: Gpu,
    tp: Degrees = "1",
    out: Annotated[Path, Option(help="Its folder of profiles: <GPU>/<model>/<type>/ is made below.")] = Path("perf"),
) -> None:
    """Profiles of a model on a GPU as LLMServingSim's own profiler would write them.

    Example: `pipewave export llmservingsim --model Llama-3.1-8B --gpu H200 --tp 1,2 --out profiler/perf`.
    """
    from pipewave.export.llmservingsim import export

    _write(export, model, gpu, tp, out)


def aiconfigurator(
    model: Model,
    gpu: Gpu,
    tp: Degrees = "1",
    out: Annotated[Path, Option(help="Its folder of systems, for --systems-paths.")] = Path("systems"),
) -> None:
    """Tables of a GPU for a model as AIConfigurator (AISimulate) reads them; needs pyarrow.

    Example: `pipewave export aiconfigurator --model Llama-3.1-8B --gpu L40S --tp 1,2 --out systems`.
    """
    from pipewave.export.aiconfigurator import export

    _write(export, model, gpu, tp, out)


def dynamo(
    model: Model,
    gpu: Gpu,
    tp: Degrees = "1",
    out: Annotated[Path, Option(help="Its profile_results_dir; a folder for each of several degrees.")] = Path(
        "dynamo"
    ),
) -> None:
    """Prefill and decode sweeps of a worker as Dynamo's planner reads them (`.npz` and JSON).

    Example: `pipewave export dynamo --model Llama-3.1-8B --gpu H200 --out profile_results`.
    """
    from pipewave.export.dynamo import export

    _write(export, model, gpu, tp, out)


def llmd(
    model: Model,
    gpu: Gpu,
    tp: Degrees = "1",
    out: Annotated[Path, Option(help="Folder for benchmarks.json.")] = Path("llm-d-planner"),
) -> None:
    """Rows for the performance database of llm-d's planner, to upload to it.

    Example: `pipewave export llmd --model Llama-3.1-8B --gpu H200 --tp 1,2 --out rows`.
    """
    from pipewave.export.llmd import export

    _write(export, model, gpu, tp, out)


GROUP = Group(
    "Write predictions in the form that other simulators read.",
    {"vidur": vidur, "llmservingsim": llmservingsim, "aiconfigurator": aiconfigurator, "dynamo": dynamo, "llmd": llmd},
)

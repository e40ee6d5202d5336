"""`pipewave measure`: time real kernels on this machine's GPU into a store that survives anything.

`pipewave calibrate`: correct the shipped model for a GPU from such rows; list or remove corrections.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pipewave.cli.command import Argument, Group, Option
from pipewave.cli.options import Format
from pipewave.cli.streams import say, show
from pipewave.errors import BadInput, MissingExtra, MissingField, extra

NEEDS = "'pipewave[gpu]' on a machine with an NVIDIA GPU"


@dataclass(frozen=True, slots=True)
class Jobs:
    """What is measured."""

    store: Annotated[str, Option(help="File to append rows to; an existing one is resumed.")]
    plan: Annotated[str, Option(help="quick, standard, full, or a cases file.")] = "quick"
    families: Annotated[str, Option(help="Comma-separated kernel families; default all.")] = ""
    protocol: Annotated[str, Option(help="Protocol of a cases file.")] = "cold"
    select: Annotated[str, Option(help="Parts of a built-in plan: cold, repeat, read, graph.")] = ""
    limit: Annotated[int, Option(help="At most so many jobs, spread over families; 0 is all.")] = 0
    retry_failed: Annotated[bool, Option("--retry-failed", help="Measure again what failed earlier.")] = False


@dataclass(frozen=True, slots=True)
class Run:
    """How it is measured."""

    in_order: Annotated[bool, Option("--in-order", help="Finish a part, then a family, before the next.")] = False
    burst: Annotated[int | None, Option(help="Cold calls timed between two rests; 0 never rests.")] = None
    batch: Annotated[int | None, Option(help="Jobs set up, profiled and stored together.")] = None
    budget_s: Annotated[float | None, Option(help="Stop starting work after so many seconds.")] = None
    quiet: Annotated[bool, Option("--quiet", help="No progress, the summary only.")] = False
    device: Annotated[str, Option(hidden=True)] = "cuda"


def measure(jobs: Jobs, run: Run) -> int:
    """Time kernels on this machine's GPU; rows are appended as they come, and the next run resumes.

    Example: `pipewave measure --plan quick --store my-gpu.rows`, then
    `pipewave calibrate --store my-gpu.rows --gpu "RTX 4090"`.
    """
    from pipewave.files.whole import distinct
    from pipewave.measure import supervise

    if not jobs.store:
        raise MissingField("missing option '--store': name the file of rows", field="store")
    distinct(jobs.store, jobs.plan, field="store")
    if run.device == "cuda":
        need_gpu()
    given = asdict(jobs) | asdict(run)
    return supervise.run(supervise.Options(**{name: value for name, value in given.items() if value not in ("", None)}))


def need_gpu(*modules: str) -> None:
    """Raise MissingExtra where nothing can be timed: torch or another module is absent, or torch sees no GPU."""
    torch, *_ = [extra(name, "timing", NEEDS) for name in ("torch", *modules)]
    if not torch.cuda.is_available():
        raise MissingExtra(f"no GPU to measure on: torch {torch.__version__} sees none", field="gpu")


def calibrate(
    store: Annotated[Path | None, Option(help="Rows of `pipewave measure`: store, packed file or folder.")] = None,
    gpu: Annotated[str | None, Option(help="The GPU they were measured on: a name, or its spec file.")] = None,
    out: Annotated[Path | None, Option(help="Where to save; default: where predictions look for it.")] = None,
    format: Format = "table",
) -> None:
    """Correct predictions for your GPU from as few as 30 rows of it.

    The error after is of rows whose whole group was left out. Predictions for that GPU, from the software that was
    measured, use the calibration from then on and say so; `PIPEWAVE_CALIBRATION=off` turns it off, and names a file or
    folder otherwise. `pipewave calibrate list` shows what is in use, `pipewave calibrate remove GPU` takes it back.
    """
    if store is None or gpu is None:
        missing = "store" if store is None else "gpu"
        raise MissingField(f"--{missing} is missing: pipewave calibrate --store rows --gpu H200", field=missing)
    from pipewave.calibrate.run import calibrate as run

    report = run(store, gpu, out=out)
    show(report.table(), format, title=f"Calibration of {report.gpu}", schema="calibration")
    for (net, protocol), rows in sorted(report.too_few.items()):
        say(f"{net} ({protocol}): {rows} rows are too few, left as it is")
    if report.skipped:
        say(f"{report.skipped} rows of kernels that cannot be predicted were skipped")
    if report.late:
        say(f"{report.late} collectives that waited for a late rank were left out")
    say(f"saved to {report.path}")


def list_(format: Format = "table") -> None:
    """Calibrations that predictions use, one row a net and protocol; damaged files are named as such."""
    from pipewave.calibrate.run import saved_rows
    from pipewave.nets.calibration import corrections

    found = list(saved_rows(corrections.saved()))
    if not found and format == "table":
        print(f"no calibration in {corrections.folder()}")
        return
    show(found, format, title="Calibrations", schema="calibrations")


def remove(gpu: Annotated[str, Argument(help="The GPU whose calibration goes, or its file.")]) -> None:
    """Delete the calibration of a GPU: its predictions are the shipped model's again."""
    from pipewave.gpus import find
    from pipewave.nets.calibration import corrections

    path = Path(gpu) if gpu.endswith(corrections.SUFFIX) else corrections.target(find(gpu).name)
    if path not in corrections.saved():
        raise BadInput(f"{gpu}: has no calibration at {path}; see `pipewave calibrate list`", field="gpu")
    path.unlink()
    corrections.forget()
    print(f"removed {path}")


ABOUT = "Correct predictions for your GPU from as few as 30 rows of it."
GROUP = Group(ABOUT, {"list": list_, "remove": remove}, calibrate)

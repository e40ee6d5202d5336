"""`pipewave measure`: time real kernels on this machine's GPU into a store that survives anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from pipewave.cli.command import Option
from pipewave.errors import MissingExtra, MissingField, extra

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

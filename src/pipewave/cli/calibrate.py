"""`pipewave calibrate`: correct the shipped model for a GPU from its own measured rows; list or remove corrections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pipewave.cli.command import Argument, Group, Option
from pipewave.cli.options import Format
from pipewave.cli.streams import say, show
from pipewave.errors import BadInput, MissingField


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

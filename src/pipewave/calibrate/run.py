"""Calibrate a GPU: read its rows, fit a correction for each net and protocol, say what each is worth, save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.calibrate.fit import FEWEST_ROWS, Fit, Key, fit, samples
from pipewave.errors import BadFile, BadInput, UnknownGPU
from pipewave.files.whole import distinct
from pipewave.gpus import GPU, find
from pipewave.measure.plan import FAKE_GPU
from pipewave.measure.row_files import environments, started_together
from pipewave.measure.row_files import rows as rows_of
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.corrections import Saved, load, save


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a calibration; `fits` by net and protocol, `skipped` rows of kernels no prediction exists for.
    `late` are collectives left out because some rank was waited for.
    """

    gpu: str
    path: Path
    fits: Mapping[Key, Fit]
    skipped: int
    too_few: Mapping[Key, int]
    late: int = 0

    def table(self) -> list[dict[str, Any]]:
        """One row a net and protocol: rows, groups, mean error before and after (left out), and what was kept."""
        return [
            {
                "net": net,
                "protocol": protocol,
                "rows": found.rows,
                "groups": found.groups,
                "MAPE before %": found.before,
                "MAPE after %": found.after,
                "interval": found.correction.width if found.correction else 1.0,
                "kept": "yes" if found.correction else "no gain",
            }
            for (net, protocol), found in sorted(self.fits.items())
        ]


def calibrate(store: Path, gpu: str | GPU, *, out: Path | None = None) -> Report:
    """Fit corrections to the rows of `store` and save them where predictions for `gpu` find them, or to `out`.

    Errors after are leave-one-group-out (leave-one-out where a net has a single group). Rows flushed otherwise than by
    writing are left out, and collectives of which some rank was waited for. BadInput when the rows allow no correction
    at all, or come from another GPU or from the fake device.
    """
    spec = find(gpu)
    path = out or corrections.target(spec.name)
    distinct(path, store)
    flushed = [row for row in rows_of(store) if row.get("flush", "write") == "write"]
    rows = [row for row in flushed if started_together(row)]
    environments_seen = tuple(environments(store).values())
    if any(environment.get("gpu") == FAKE_GPU for environment in environments_seen):
        raise BadInput("rows of the fake device, which measures nothing: measure on the GPU itself", field="store")
    _same_gpu(spec, environments_seen)
    found, skipped = samples(rows, spec)
    fits = {key: fit(sample) for key, sample in found.items() if len(sample) >= FEWEST_ROWS}
    if not fits:
        raise BadInput(
            f"{store}: {len(rows)} usable rows; at least {FEWEST_ROWS} of one kernel are needed", field="store"
        )
    kept = {key: one.correction for key, one in fits.items() if one.correction}
    save(Saved(spec.name, kept, environments_seen), path)
    corrections.forget()
    too_few = {key: len(sample) for key, sample in found.items() if len(sample) < FEWEST_ROWS}
    return Report(spec.name, path, fits, skipped, too_few, late=len(flushed) - len(rows))


def _same_gpu(spec: GPU, environments_seen: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows whose environment names another GPU that is known by name."""
    for name in {str(environment.get("gpu", "")) for environment in environments_seen}:
        try:
            other = find(name).name if name else spec.name
        except UnknownGPU:
            continue
        if other != spec.name:
            raise BadInput(f"the rows are of {name}, not of {spec.name}: calibrate with --gpu {other!r}", field="gpu")


def saved_rows(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """GPU, net, protocol, rows and file of every correction; a file that cannot be used says why."""
    for path in paths:
        try:
            saved = load(path)
        except BadFile as problem:
            yield {"GPU": "?", "net": "", "protocol": "", "rows": 0, "file": str(path), "state": problem.message}
            continue
        for (net, protocol), correction in sorted(saved.corrections.items()):
            about = {"GPU": saved.gpu, "net": net, "protocol": protocol, "rows": correction.rows}
            yield about | {"file": str(path), "state": "in use"}

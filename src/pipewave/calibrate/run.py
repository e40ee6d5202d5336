"""Calibrate a GPU: read its rows, fit a correction for each net and protocol, say what each is worth, save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.calibrate.fit import FEWEST_ROWS, Fit, fit
from pipewave.calibrate.samples import Key, samples
from pipewave.errors import BadInput
from pipewave.files.whole import distinct
from pipewave.gpus import GPU, find
from pipewave.measure.job import FAKE_GPU
from pipewave.measure.row_files import environments, started_together
from pipewave.measure.row_files import rows as measured_rows
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.file import Saved, save


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
        return list(self._lines())

    def _lines(self) -> Iterator[dict[str, Any]]:
        for (net, protocol), found in sorted(self.fits.items()):
            yield {
                "net": net,
                "protocol": protocol,
                "rows": found.rows,
                "groups": found.groups,
                "MAPE before %": found.before,
                "MAPE after %": found.after,
                "interval": found.correction.width if found.correction else 1.0,
                "kept": "yes" if found.correction else "no gain",
            }


def calibrate(store: Path, gpu: str | GPU, *, out: Path | None = None, force: bool = False) -> Report:
    """Fit corrections to the rows of `store` and save them where predictions for `gpu` find them, or to `out`.

    `force` takes rows of the fake device too, which replays recorded rows and measures nothing. Errors after are
    leave-one-group-out (leave-one-out where a net has a single group). Rows flushed otherwise than by writing are left
    out, and collectives of which some rank was waited for. BadInput when the rows allow no correction at all, or come
    from another GPU.
    """
    spec = find(gpu)
    path = out or corrections.target(spec.name)
    distinct(path, store)
    flushed = [row for row in measured_rows(store) if row.get("flush", "write") == "write"]
    rows = [row for row in flushed if started_together(row)]
    environments_seen = tuple(environments(store).values())
    if not force:
        _real(environments_seen)
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


def _real(environments_seen: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows that no GPU produced."""
    if any(environment.get("gpu") == FAKE_GPU for environment in environments_seen):
        text = "the rows are of the fake device, which measures nothing: measure on the GPU itself, or pass --force"
        raise BadInput(text, field="store")


def _same_gpu(spec: GPU, environments_seen: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows whose environment names another GPU that is known by name."""
    from pipewave.errors import UnknownGPU

    for name in {str(environment.get("gpu", "")) for environment in environments_seen}:
        try:
            other = find(name).name if name else spec.name
        except UnknownGPU:
            continue
        if other != spec.name:
            raise BadInput(f"the rows are of {name}, not of {spec.name}: calibrate with --gpu {other!r}", field="gpu")

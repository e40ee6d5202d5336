"""`pipewave tell`: result files of a deployment, what they say of it, and where they are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.files import whole
from pipewave.files.json_text import dumps
from pipewave.published.cases import MOST_TOLD, Measured, from_dict
from pipewave.told.answers import Learned, learn
from pipewave.told.figures import figures
from pipewave.told.readers import Results, Run, read

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
ANY_LOAD: Run = {"isl": 1, "osl": 1, "concurrency": 1}  # of a case that is there for its told runs alone
DEPLOYMENT = ("model", "gpu", "engine", "version", "tp", "pp", "ep", "dp")
SHOWN = ("isl", "osl", "concurrency", "rate")


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """Measured runs as `told` of a case takes them, and what they say."""

    results: tuple[Results, ...]
    runs: tuple[Run, ...]
    measured: tuple[Measured, ...]
    learned: Learned | None  # None: none of them can be simulated
    notes: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row a run: its load, each mean, and what it is over the prediction in percent."""
        return [_row(run) for i, run in enumerate(self.measured) if self.learned and i in self.learned.runs]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"tools": [one.tool for one in self.results], "told": list(self.runs), "rows": self.rows(),
                "notes": list(self.notes)}  # fmt: skip


def tell(files: Sequence[str | Path], *, also: Mapping[str, Any] | None = None, **case: Any) -> Told:
    """As `pipewave.face.tell`."""
    results = tuple(read(stored(path), also) for path in files)
    runs = [one for result in results for one in result.runs]
    spread = np.unique(np.linspace(0, max(len(runs) - 1, 0), MOST_TOLD).astype(int))
    given = {name: value for name, value in case.items() if value is not None}
    kept = tuple(runs[i] | given for i in spread)
    measured = from_dict({**ANY_LOAD, **_first(kept), "told": kept}).told
    learned, refused = learn(measured)
    return Told(results, kept, measured, learned, (*refused, *(learned.sentences() if learned else ())))


def _first(runs: Sequence[Run]) -> Run:
    """The deployment of the first run, for a case needs one."""
    return {name: runs[0][name] for name in DEPLOYMENT if runs and runs[0].get(name) is not None}


def _row(run: Measured) -> dict[str, Any]:
    predicted = figures(run.case).answer
    load = {name: getattr(run.case, name) for name in SHOWN if getattr(run.case, name) is not None}
    over = {
        f"{name} off %": round(100 * (value / predicted[name] - 1), 1) for name, value in run.means if name in predicted
    }
    return load | {name: round(value, 3) for name, value in run.means} | over


def stored(name: str | Path) -> Path:
    """A file, or what was kept under a name."""
    path = Path(name)
    kept = _folder() / f"{name}.json"
    return kept if not path.exists() and NAME.fullmatch(str(name)) and kept.exists() else path


def runs_of(names: Sequence[str | Path]) -> list[Run]:
    """The runs of files, or of what was kept under names. Raises what `read` raises."""
    return [run for name in names for run in read(stored(name)).runs]


def keep(found: Told, name: str) -> Path:
    """Write runs where `stored` finds them. BadInput for a name that cannot be a file's."""
    if not NAME.fullmatch(name):
        raise BadInput(f"name = {name!r}: must be letters, digits, dots, dashes", field="name")
    path = _folder() / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.write(path, dumps(list(found.runs)).encode())
    return path


def _folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("pipewave") / "told"

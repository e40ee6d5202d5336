"""`pipewave tell`: result files of a deployment, what they say of it, where they are kept, and what to measure next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput, PipewaveError
from pipewave.files import whole
from pipewave.files.json_text import dumps
from pipewave.physics.demand import Array
from pipewave.published.cases import MEASURED, MOST_TOLD, Case, Measured, from_dict
from pipewave.told.answers import ENERGY, Figures, Learned, figures, learn, point
from pipewave.told.posterior import NORMAL, Points, left_open
from pipewave.told.readers import Results, Run, read

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
ANY_LOAD: Run = {"isl": 1, "osl": 1, "concurrency": 1}  # of a case that is there for its told runs alone
DEPLOYMENT = ("model", "gpu", "engine", "version", "tp", "pp", "ep", "dp")
PROPOSED = 3  # loads to measure next
CONCURRENCY = (1, 8, 32, 128)  # of those, and prompts and outputs over those of the first told run
STRETCHED = ((1, 1), (4, 1), (1, 4))


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
    first = {name: kept[0][name] for name in DEPLOYMENT if kept and kept[0].get(name) is not None}
    measured = from_dict({**ANY_LOAD, **first, "told": kept}).told
    learned, refused = learn(measured)
    return Told(results, kept, measured, learned, (*refused, *(learned.sentences() if learned else ())))


def _row(run: Measured) -> dict[str, Any]:
    predicted = figures(run.case).answer
    paced = ("requests",) if run.case.mode == "offline" else ("rate", "concurrency")
    load = {name: value for name in ("isl", "osl", *paced) if (value := getattr(run.case, name)) is not None}
    known = ((name, value / predicted[name]) for name, value in run.means if name in predicted)
    over = {f"{name} off %": round(100 * (ratio - 1), 1) for name, ratio in known}
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


def next_loads(found: Told) -> list[dict[str, Any]]:
    """Loads to measure, the most telling first, each with half the 90 % interval in percent that is left once it and
    those before it are told: the mean over all loads that were weighed. BadInput where nothing told can be simulated.

    Chosen greedily: the variance that runs leave does not depend on what they find.
    """
    if found.learned is None:
        raise BadInput("next: none of the told runs can be simulated", field="next")
    prior, told = found.learned.posterior.prior, found.learned.posterior.told
    loads = list(_loads(found.measured[found.learned.runs[0]].case))
    names = [name for name in MEASURED if name != ENERGY]
    points = [Points.of([point(one, name, 0) for name in names if name in one.slopes]) for _, one in loads]
    every, chosen = Points.joined(points), list[int]()
    rows = []

    def half(at: int) -> float:
        """Percent, the mean of all figures."""
        deviations: Array = np.sqrt(left_open(prior, Points.joined([told, *(points[i] for i in (*chosen, at))]), every))
        return float(100 * np.expm1(NORMAL * float(prior.width[0]) * deviations).mean())

    for _ in range(min(PROPOSED, len(loads))):
        left = {at: half(at) for at in range(len(loads)) if at not in chosen}
        chosen.append(min(left, key=left.__getitem__))
        case = loads[chosen[-1]][0]
        load = {"isl": case.isl, "osl": case.osl, "concurrency": case.concurrency}
        rows.append(load | {"then ± %": round(left[chosen[-1]], 1)})
    return rows


def _loads(first: Case) -> Iterator[tuple[Case, Figures]]:
    """Closed loops of the deployment, without those that it cannot serve."""
    for (prompt, output), flight in product(STRETCHED, CONCURRENCY):
        isl, osl = prompt * (first.isl or 1024), output * (first.osl or 128)
        case = replace(first, isl=isl, osl=osl, concurrency=flight, requests=2 * flight, rate=None, arrivals=None,
                       mode="serve", told=())  # fmt: skip
        with suppress(PipewaveError):
            yield case, figures(case)

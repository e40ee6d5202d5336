"""Errors of the shipped weights on shapes they never saw: `python -m qa.accuracy [--data CORPUS] [--check|--write]`.

Our own H200 rows, and the public corpus where it is given, cell by cell and without calibration. `--write` makes these
the figures that `pipewave accuracy` shows (src/pipewave/data/accuracy/figures.json), `--check` ends with status 1 where
one of them has moved. `--splits` lists members trained without the shapes, GPU or family that they are scored on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corpus.cases import held_out, held_out_rows
from pipewave.calls.families import CLASSES, Call, from_dict
from pipewave.cli.streams import show
from pipewave.errors import BadFile, PipewaveError
from pipewave.files import packaged, whole
from pipewave.measure.row_files import clock_mhz, rows, started_together
from pipewave.nets.calibration.corrections import suspended
from pipewave.physics.demand import Array
from pipewave.prediction.answers import Predictions
from pipewave.prediction.api import predict

Row = Mapping[str, Any]
ROOT = Path(__file__).resolve().parents[1]
FIGURES = packaged.ROOT / "data" / "accuracy" / "figures.json"
GPU, OWN_ROWS = "H200", ROOT / "data" / "measured" / "h200"
SCHEMA = 1
POINTS = 0.3  # drift that is not rounding
WATCHED = ("mape", "median", "bias", "coverage", "slower")
COUNTED = ("rows", "below_floor", "failed")
TABLES = ROOT / "train" / "tables"  # <net>.<protocol>.json: kind of split → `GPU · dtype` → figures
PROTOCOLS = ("graph", "cold", "profiler_warm")
KINDS = {
    "fold": "unseen shapes",
    "logo": "unseen GPU",
    "lofo": "unseen family",
    "few": "100 rows in training",
    "corrected": "corrected by 100 rows",
    "averaged": "both averaged",
}
ALL = "macro mean"
SHOWN = ("rows", "mape", "median", "bias", "coverage", "width")


@dataclass(frozen=True, slots=True)
class Key:
    """What rows of a cell share."""

    family: str  # attention prefill and decode are two
    gpu: str
    dtype: str
    stack: str
    impl: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Percentages over the rows of a cell, but for counts and ratios; predicted over measured − 1 is the error."""

    rows: int
    mape: float  # mean absolute error
    median: float  # median absolute error
    bias: float  # mean signed error
    coverage: float  # rows inside the 90 % interval
    slower: float  # rows slower than the ceiling: 80 where the ceiling is a true P80
    below_floor: int
    over_floor: float  # median of measured over floor
    width: float  # median width of the interval over the prediction
    failed: int = 0  # rows without an answer


Cells = Mapping[Key, Figures]
Seen = Callable[[Key, Predictions, Array], None]
Cell = Mapping[str, float | None]


def own_rows() -> list[Row]:
    """Our H200 rows of held-out shapes, but those flushed by reading and collectives that waited for a rank."""
    return [
        row
        for row in rows(OWN_ROWS)
        if row["case"]["kernel"] in CLASSES
        and row.get("flush", "write") == "write"
        and started_together(row)
        and held_out(row["case"])
    ]


def cases(found: Iterable[Row]) -> Iterator[Row]:
    """A case of the contract for each row; a second one where a Triton configuration or the SM clock is known."""
    for row in found:
        case = row["case"] | {"stack": row["stack"], "impl": row["impl"]}
        shown = {"case": case, "protocol": row["protocol"], "latency_us": row["latency_us"], "gpu": GPU}
        yield shown | {"impl": row["impl"]}
        if row["case"]["kernel"] == "gemm" and row["protocol"] == "cold" and (clock := clock_mhz(row)):
            yield shown | {"case": case | {"sm_clock_mhz": clock}, "impl": f"{row['impl']}, clock known"}
        if row.get("config"):
            yield shown | {"case": case | {"config": dict(row["config"])}, "impl": f"{row['impl']}, config known"}


def score(found: Iterable[Row], seen: Seen | None = None) -> dict[Key, Figures]:
    """Figures by cell. A row has `case` (stack and impl in it), `gpu`, `protocol`, `impl` and `latency_us`.

    `seen` is shown the predictions of each cell and what was measured, in µs.
    """
    cells: dict[Key, list[Row]] = defaultdict(list)
    for row in found:
        cells[key_of(row)].append(row)
    return {key: _scored(key, cells[key], seen) for key in sorted(cells, key=_order)}


def key_of(row: Row) -> Key:
    """The cell of a row."""
    case = row["case"]
    software = (case.get("dtype", "bf16"), case["stack"] or "", row["impl"])
    return Key(family_name(case), row["gpu"], *software, row["protocol"])


def family_name(case: Mapping[str, Any]) -> str:
    """The kernel, with its phase for attention: decode when every request brings one token."""
    kernel = str(case["kernel"])
    if kernel == "attention":
        return f"{kernel} {'decode' if set(case['q_lens']) == {1} else 'prefill'}"
    return f"{kernel} {case['phase']}" if kernel == "mla" else kernel


def _scored(key: Key, found: Sequence[Row], seen: Seen | None) -> Figures:
    calls: list[Call] = []
    measured = []
    for row in found:
        try:
            calls.append(from_dict(row["case"]))
        except PipewaveError:
            continue
        measured.append(row["latency_us"])
    failed = len(found) - len(calls)
    if not calls:
        nan = float("nan")
        return Figures(0, nan, nan, nan, nan, nan, 0, nan, nan, failed)
    with suspended():
        answers = predict(calls, key.gpu, protocol=key.protocol)
    if seen:
        seen(key, answers, np.array(measured))
    return figures(answers, np.array(measured), failed)


def figures(answers: Predictions, measured: Array, failed: int = 0) -> Figures:
    """Figures of some predictions, `measured` in µs."""
    error = answers.latency_us / measured - 1.0
    inside = (answers.low_us <= measured) & (measured <= answers.high_us)
    return Figures(
        rows=len(measured),
        mape=_percent(np.abs(error).mean()),
        median=_percent(np.median(np.abs(error))),
        bias=_percent(error.mean()),
        coverage=_percent(inside.mean()),
        slower=_percent((measured > answers.ceiling_us).mean()),
        below_floor=int((measured < answers.floor_us).sum()),
        over_floor=round(float(np.median(measured / answers.floor_us)), 3),
        width=round(float(np.median((answers.high_us - answers.low_us) / answers.latency_us)), 3),
        failed=failed,
    )


def _percent(share: Any) -> float:
    return round(100.0 * float(share), 2)


def _order(key: Key) -> tuple[str, ...]:
    return (key.protocol, key.family, key.dtype, key.gpu, key.stack, key.impl)


def read(path: Path = FIGURES) -> dict[str, dict[Key, Figures]]:
    """Cells by part (`own`, `public`); BadFile when the file is not one of ours. No file holds no figures."""
    if not path.exists():
        return {}
    try:
        content = json.loads(packaged.content(path))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this version reads {SCHEMA}")
        return {part: dict(map(_cell, cells)) for part, cells in content["parts"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{path}: not accuracy figures ({error})", field="figures") from error


def _cell(given: Mapping[str, Any]) -> tuple[Key, Figures]:
    names = Key.__dataclass_fields__
    key = Key(**{name: str(value) for name, value in given.items() if name in names})
    return key, Figures(**{name: value for name, value in given.items() if name not in names})


def write(path: Path, parts: Mapping[str, Cells]) -> None:
    """Write parts as JSON, one cell a line so that a change shows in a diff."""
    body = ",\n".join(
        f' "{part}": [\n  ' + ",\n  ".join(json.dumps(row) for row in table(cells)) + "\n ]"
        for part, cells in sorted(parts.items())
    )
    whole.write(path, f'{{"schema": {SCHEMA}, "parts": {{\n{body}\n}}}}\n'.encode())


def table(cells: Cells) -> list[dict[str, object]]:
    """One flat row a cell; figures that cannot be had are null."""
    return [asdict(key) | {name: _finite(v) for name, v in asdict(found).items()} for key, found in cells.items()]


def _finite(value: float) -> float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def drifts(committed: Cells, today: Cells) -> list[str]:
    """A line for every watched figure that moved by more than POINTS, every count that changed, every cell missing."""
    lines = [f"{_name(key)}: gone" for key in committed if key not in today]
    lines += [f"{_name(key)}: new" for key in today if key not in committed]
    shared = [key for key in committed if key in today]
    return lines + [f"{_name(key)}: {line}" for key in shared for line in _moved(committed[key], today[key])]


def _moved(old: Figures, new: Figures) -> Iterator[str]:
    for name in (*WATCHED, *COUNTED):
        before, after = getattr(old, name), getattr(new, name)
        if before is None or after is None or math.isnan(after):
            continue
        if abs(after - before) > (POINTS if name in WATCHED else 0):
            yield f"{name} {before} became {after}"


def _name(key: Key) -> str:
    return " · ".join(asdict(key).values())


def left_out(net: str, protocol: str, folder: Path = TABLES) -> dict[str, dict[str, Cell]]:
    """Kind of split → cell → figures; kinds that only a smaller run was scored on come from `.reduced.json`."""
    full, small = (read_table(folder / f"{net}.{protocol}{suffix}.json") for suffix in ("", ".reduced"))
    return {kind: cells for kind, cells in small.items() if kind not in full} | full


def read_table(path: Path) -> dict[str, Any]:
    """A table of held-out errors, or nothing where there is none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def nets(folder: Path = TABLES) -> list[str]:
    """Nets with tables."""
    return sorted({path.name.partition(".")[0] for path in folder.glob("*.json")})


def left_out_rows(folder: Path = TABLES) -> Iterator[dict[str, object]]:
    """One row a net, protocol, split and cell."""
    for net in nets(folder):
        for protocol in PROTOCOLS:
            for kind, cells in left_out(net, protocol, folder).items():
                for name, cell in cells.items():
                    labels = {"net": net, "protocol": protocol, "split": KINDS.get(kind, kind), "cell": name}
                    yield labels | {figure: cell.get(figure) for figure in SHOWN}


def main() -> int:
    """Score, print, and compare or write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="also score this public corpus")
    for name in ("check", "write", "splits", "json"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if options.splits:
        show(list(left_out_rows()), "json" if options.json else "table")
        return 0
    parts: dict[str, Cells] = {"own": score(cases(own_rows()))}
    if options.data:
        parts["public"] = score(held_out_rows(options.data))
    for cells in parts.values():
        show(table(cells), "json" if options.json else "table")
    if options.write:
        write(FIGURES, read() | parts)
    lines = [line for part, cells in parts.items() for line in drifts(read().get(part, {}), cells)]
    print("\n".join(lines), file=sys.stderr)
    return 1 if lines and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

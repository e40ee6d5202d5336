"""`python -m studies.gemm_clock`: how a GEMM's time follows the SM clock, and which clock our cold rows have.

For each type, three studies. *Pairs*: every product was measured twice, once in bursts with rests and once under load;
what the clock does is read off the two times, with no model between. *Drops*: the clock that rested rows have by length
and tensor share, fitted without fold 0. *Errors* of the shipped net on fold 0, with a row's clock unknown and known.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pipewave as pw
from pipewave.calls.families import from_dict
from pipewave.kernels import family_of
from pipewave.kernels.gemm.family import KNOTS
from pipewave.measure.row_files import clock_mhz, rows
from pipewave.prediction.columns import columns_of, group_key_of
from pipewave.prediction.kernel_latency import answer

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h200"
RESTED, LOADED = FOLDER / "gemm.json.gz", FOLDER / "loaded" / "gemm.json.gz"
TYPES = ("bf16", "fp16", "fp8", "fp8_block")
NAMES = ("memory_share", "tensor_share", "log_base")
GPU = pw.find("H200")
Floats = NDArray[np.float64]
Row = dict[str, Any]


def cold(file: Path = RESTED) -> list[Row]:
    """Our cold rows whose clock is known."""
    return [r for r in rows(file) if r["protocol"] == "cold" and not r.get("flush") and r.get("spin_us")]


def answered(found: list[Row], *, known: bool) -> tuple[Floats, dict[str, Floats]]:
    """Predicted µs of each row and the features NAMES."""
    family, groups = family_of("gemm"), dict[tuple[Any, ...], list[int]]()
    calls = [from_dict(_case(row, known)) for row in found]
    for i, call in enumerate(calls):
        groups.setdefault(group_key_of(family, call, None, None), []).append(i)
    predicted, named = np.empty(len(found)), {name: np.empty(len(found)) for name in NAMES}
    for key, members in groups.items():
        answers = answer(family, columns_of(family, [calls[i] for i in members]), key, GPU, "cold")
        predicted[members] = answers.seconds[0] * 1e6
        for name, values in named.items():
            values[members] = answers.analysis.features[name]
    return predicted, named


def _case(row: Row, known: bool) -> Row:
    case: Row = row["case"] | {"stack": row["stack"], "impl": row["impl"]}
    return case | ({"sm_clock_mhz": clock_mhz(row)} if known else {})


def fit(design: Floats, target: Floats) -> Floats:
    """Coefficients by least absolute deviations, reweighted."""
    weight = np.ones(len(target))
    for _ in range(30):
        root = np.sqrt(weight)
        found = np.linalg.lstsq(design * root[:, None], target * root, rcond=None)[0]
        weight = 1 / np.maximum(np.abs(target - design @ found), 0.01)
    return np.asarray(found)


def clocks(found: Sequence[Row]) -> Floats:
    """Shares of boost."""
    return np.array([clock_mhz(row) for row in found], dtype=float) / GPU.boost_clock_mhz


def pairs(rested: list[Row], loaded: list[Row]) -> Row:
    """Exponents of time in the inverse clock, and what two runs at the same clock differ by."""
    again = {row["key"]: row for row in loaded}
    both = [(row, again[row["key"]]) for row in rested if row["key"] in again]
    first, second = ([pair[side] for pair in both] for side in (0, 1))
    share = answered(first, known=False)[1]["memory_share"]
    slower = np.log(clocks(first) / clocks(second))
    longer = np.log([b["latency_us"] / a["latency_us"] for a, b in both])
    offset, on_chip, lost = fit(np.stack([np.ones_like(slower), slower, -share * slower], 1), longer)
    same = np.abs(slower) < 0.02
    return {
        "pairs": len(both), "offset, on_chip, lost": [round(float(v), 3) for v in (offset, on_chip, lost)],
        "apart, %": _percent(np.abs(longer).mean()), "at one clock, %": _percent(np.abs(longer[same]).mean()),
    }  # fmt: skip


def drops(rested: list[Row]) -> Row:
    """Constants of `gemm_clock.cold_clock`."""
    seen = [row for row in rested if not held_out(row)]
    named = answered(seen, known=False)[1]
    (start, middle, end), at, share = KNOTS, named["log_base"], named["tensor_share"]
    rise, fall = np.clip((at - start) / (middle - start), 0, 1), np.clip((at - middle) / (end - middle), 0, 1)
    clock = clocks(seen)
    found = fit(np.stack([np.ones_like(at), -share * (rise - fall), -share * fall], 1), np.log(clock))
    low, median, high = np.percentile(clock, (10, 50, 90))
    return {
        "clock over boost, 10 %, median, 90 %": [round(float(v), 3) for v in (low, median, high)],
        "alone, drop at 60 µs, from 150 µs": [round(float(v), 3) for v in (np.exp(found[0]), *found[1:])],
    }


def errors(found: list[Row]) -> Row:
    """MAPE and bias on fold 0, in percent."""
    held = [row for row in found if held_out(row)]
    measured = np.array([row["latency_us"] for row in held])
    unknown, known = (answered(held, known=clock_given)[0] / measured for clock_given in (False, True))
    return {"rows": len(held), "clock unknown: MAPE %, bias %": _errors(unknown),
            "clock known: MAPE %, bias %": _errors(known)}  # fmt: skip


def held_out(row: Row) -> bool:
    """Whether neither nets nor fits saw the product's weights."""
    return zlib.crc32(f"{row['case']['n']},{row['case']['k']}".encode()) % 10 == 0


def _errors(ratio: Floats) -> list[float]:
    return [_percent(np.abs(ratio - 1).mean()), _percent((ratio - 1).mean())]


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)


def main() -> None:
    """Four lines a type."""
    sets = {name: cold(file) for name, file in (("rested", RESTED), ("loaded", LOADED))}
    for dtype in TYPES:
        rested, loaded = ([row for row in found if row["case"]["dtype"] == dtype] for found in sets.values())
        studies = {"pairs": pairs(rested, loaded), "drops": drops(rested)}
        studies |= {f"errors, {name}": errors(found) for name, found in (("rested", rested), ("loaded", loaded))}
        for name, study in studies.items():
            print(json.dumps({"dtype": dtype, "study": name} | study, ensure_ascii=False))


if __name__ == "__main__":
    main()

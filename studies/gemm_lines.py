"""`python -m studies.gemm_lines`: what rows that start inside a cache line cost our cold products, fitted and scored.

By library and the largest power of two that divides the bytes of a row: rows of both cards outside the fold that
shipped weights are scored on, and the fit behind the rule `gemm_row_start`: least absolute errors of log time over the
doublings of tiles an SM has. Then errors without the factor and with it, clocks not given, on rows of that fold and of
another day.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pipewave as pw
from corpus.cases import held_out
from pipewave.calls.dtypes import OPERAND_BYTES
from pipewave.gpus import find
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.family import octaves, unaligned
from pipewave.kernels.gemm.machine import machine
from pipewave.measure.row_files import rows
from pipewave.physics.arith import ARRAY
from pipewave.physics.cache import LINE

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured"
CARDS = ("H100", "H200")
TYPES = ("bf16", "fp16", "fp8")
ALIKE = {"fp16": "bf16"}  # types that the same kernels take
LEAST, MORE = np.arange(0.0, 0.1, 0.001), np.arange(0.0, 0.04, 0.001)  # tried
KEY = ["card", "dtype", "stack", "impl"]


def table() -> pd.DataFrame:
    """Our cold products of every card, with their predictions and what the factor and its fit look at."""
    found = pd.concat([_of(card, day) for card in CARDS for day in ("", "another_day")], ignore_index=True)
    for (card, *_), at in found.groupby(KEY).indices.items():
        part = found.loc[at]
        found.loc[at, ["predicted", "factor", "octaves", "library"]] = _answered(card, part)
    size = (found["k"] * found["dtype"].map(OPERAND_BYTES)).astype(int)
    return found.assign(unit=unit(size), dtype=found["dtype"].replace(ALIKE))


def unit(row_bytes: Any) -> Any:
    """The largest power of two, up to a line, that divides the bytes of a row."""
    return np.minimum(row_bytes & -row_bytes, LINE)


def _of(card: str, day: str) -> pd.DataFrame:
    """Cold rows of a day of a card; `held`: whether shipped weights never saw them."""
    kept = [row for row in rows(FOLDER / card.lower() / day / "gemm.json.gz") if _wanted(row)]
    whole = [row["case"] | {name: row[name] for name in ("stack", "impl", "latency_us")} for row in kept]
    held = [bool(day) or held_out(row["case"]) for row in kept]
    columns = ["m", "n", "k", "dtype", "quantize", "stack", "impl", "latency_us"]
    return pd.DataFrame(whole).reindex(columns=columns).assign(card=card, held=held).fillna({"quantize": False})


def _wanted(row: dict[str, object]) -> bool:
    plain = row["protocol"] == "cold" and row.get("flush", "write") == "write"
    return plain and row["case"].get("dtype") in TYPES  # type: ignore[attr-defined]


def _answered(card: str, part: pd.DataFrame) -> pd.DataFrame:
    """Of rows of one card, type and software: predicted µs, the factor in them, and the octaves of tiles."""
    first = part.iloc[0]
    ctx = Context(find(card), first["dtype"], "cold", first["stack"], first["impl"], ())
    m, n, k = (part[name].to_numpy(float) for name in ("m", "n", "k"))
    asked = part[["m", "n", "k", "dtype", "quantize", "stack", "impl"]].assign(kernel="gemm")
    answers = {
        "predicted": pw.predict(asked, card, protocol="cold").latency_us,
        "factor": unaligned(m, n, k, machine(ctx), ctx, ARRAY) * np.ones(len(part)),
        "octaves": octaves(m, n, float(ctx.gpu.sms), ARRAY),
        "library": ctx.rule("gemm_library"),
    }
    return pd.DataFrame(answers, index=part.index)


def fitted(off: pd.Series, more: pd.Series) -> tuple[float, float]:
    """Log of the time lost with the fewest tiles, and more per octave."""
    tried = [(np.abs(off - least - each * more).mean(), least, each) for least, each in product(LEAST, MORE)]
    return min(tried)[1:]


def error(part: pd.DataFrame, factor: pd.Series | float) -> float:
    """Mean absolute error in percent where the factor of the answers is replaced by another."""
    return float(100 * (part["predicted"] / part["factor"] * factor / part["latency_us"] - 1).abs().mean())


def main() -> None:
    """Run the command."""
    found = table()
    found["off"] = np.log(found["latency_us"] / found["predicted"] * found["factor"])
    print("library | type | unit, bytes | rows | fitted: fewest tiles | per octave")
    inside = found[~found["held"] & (found["unit"] < LINE)]
    for (library, dtype, unit), part in inside.groupby(["library", "dtype", "unit"]):
        least, more = fitted(part["off"], part["octaves"])
        print(f"{library} | {dtype} | {unit} | {len(part)} | {least:.3f} | {more:.3f}")
    print("library | type | unit, bytes | held-out rows | MAPE without, % | with, %")
    for (library, dtype, unit), part in found[found["held"]].groupby(["library", "dtype", "unit"]):
        print(
            f"{library} | {dtype} | {unit} | {len(part)} | {error(part, 1.0):.2f} | {error(part, part['factor']):.2f}"
        )


if __name__ == "__main__":
    main()

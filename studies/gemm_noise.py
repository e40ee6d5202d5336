"""`python -m studies.gemm_noise [--data DIR] [--json FILE]`: how well measurements foretell measurements.

A counted bf16 row of the public corpus under `graph` is foretold from what other stacks and versions measured of the
very same product on the same GPU: their median, each put right by the usual ratio of the two stacks at such a latency.
All of them call cuBLAS. A model of shapes never seen cannot be expected to come much closer than that.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from train import corpus
from train.splits import SCORED, fold

SHAPE = ["m", "n", "k"]
EDGES_US = (4.0, 6.0, 10.0, 20.0, 50.0, 200.0, 1000.0)
Floats = NDArray[np.float64]


def rows(data: Path | None) -> pd.DataFrame:
    """bf16 products of every version, `counted` where tables score them; log µs in `log_us`."""
    frame = corpus.load("gemm", data, sources=("aiconfigurator",))
    frame = frame[(frame["protocol"] == "graph") & (frame["dtype"] == "bf16") & ~frame["flagged"]]
    counted = corpus.newest(frame.reset_index(names="row"))["row"]
    frame = frame.assign(counted=frame.index.isin(counted), log_us=np.log(frame["latency_us"]))
    scored = frame["group"].astype(str).map(fold).isin(SCORED)
    return frame.assign(counted=frame["counted"] & scored).drop_duplicates(["gpu", "stack", *SHAPE])


def foretold(mine: pd.DataFrame) -> Floats:
    """Relative errors of one GPU's counted rows, in percent."""
    table = mine.pivot_table(index=SHAPE, columns="stack", values="log_us", observed=True)
    found = []
    for stack in mine.loc[mine["counted"], "stack"].astype(str).unique():
        other = table.drop(columns=stack)
        guess = np.nanmedian(other - np.nanmedian(other.sub(table[stack], axis=0), axis=0), axis=1)
        wanted = mine[mine["counted"] & (mine["stack"] == stack)].set_index(SHAPE)["log_us"]
        found.append(_errors(pd.Series(guess, table.index), table[stack], wanted))
    return np.concatenate(found)


def _errors(guess: pd.Series, measured: pd.Series, wanted: pd.Series) -> Floats:
    """Of the guesses put right by the median miss at their latency, over the rows that are wanted."""
    size = np.digitize(guess, np.log(EDGES_US))
    usual = (measured - guess).groupby(size).transform("median")
    off = (guess + usual).reindex(wanted.index).to_numpy() - wanted.to_numpy()
    return np.asarray(100.0 * np.abs(np.expm1(off[np.isfinite(off)])))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.gemm_noise", description=__doc__)
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    errors = {str(gpu): foretold(mine) for gpu, mine in rows(options.data).groupby("gpu", observed=True)}
    figures = {gpu: {"rows": len(one), "mape": round(float(one.mean()), 2)} for gpu, one in errors.items()}
    mean = round(float(np.mean([one["mape"] for one in figures.values()])), 2)
    print(
        *(f"{gpu}: {one['mape']} % of {one['rows']:,} rows" for gpu, one in figures.items()), f"mean {mean} %", sep="\n"
    )
    if options.json:
        options.json.write_text(json.dumps({"gpus": figures, "mean": mean}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How well a message's neighbours foretell it: `python -m studies.collective_series [--data DIR]`.

Of each GPU, stack, protocol and number of ranks, the sizes of a held-out fold are read off a straight line, in
logarithms, between the sizes around them. A net cannot do much better than that where times jump from size to size; it
must do as well for ranks, stacks and GPUs that have no such row.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from pipewave.kernels.collective.algorithms import CUSTOM_BELOW
from pipewave.kernels.collective.analyse import SMALL_ALL_REDUCE
from studies.collective_sizes import MIB, Floats
from train.nets.collective import OPS
from train.registry import frame_of
from train.splits import SCORED, fold

SERIES = ["gpu", "stack", "impl", "protocol", "dtype", "world", "nodes", "fabric", "kernel_source"]


def foretold(known: pd.DataFrame, size: Floats) -> Floats:
    """Log µs at sizes (log2 of bytes) from medians of known sizes: between them, and straight on beyond the last."""
    line = known.groupby("size")["log_us"].median()
    x, y = line.index.to_numpy(float), line.to_numpy(float)
    beyond = (size - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2])
    return np.where(size > x[-1], y[-1] + beyond, np.interp(size, x, y))


def errors(net: str, data: Path | None) -> pd.DataFrame:
    """Held-out rows that have two other sizes in their series, with the relative error in `error`."""
    frame = frame_of(net, data)
    if net == SMALL_ALL_REDUCE:
        frame = frame[frame["bytes"] < CUSTOM_BELOW]
    folds = {group: fold(str(group)) for group in frame["group"].unique()}
    frame = frame.assign(
        fold=frame["group"].map(folds).astype(int),
        size=np.log2(frame["bytes"].to_numpy(float)),
        log_us=np.log(frame["latency_us"].to_numpy(float)),
    )
    return pd.concat(_scored(series) for _, series in frame.groupby(SERIES, dropna=False, observed=True))


def _scored(series: pd.DataFrame) -> pd.DataFrame:
    parts = [series.iloc[:0].assign(error=np.zeros(0))]
    for number in SCORED:
        held, known = series[series["fold"] == number], series[series["fold"] != number]
        if len(held) and known["size"].nunique() > 1:
            off = foretold(known, held["size"].to_numpy()) - held["log_us"].to_numpy()
            parts.append(held.assign(error=np.abs(np.expm1(off))))
    return pd.concat(parts)


def table(data: Path | None) -> Iterator[tuple[object, ...]]:
    """Net, protocol, side of 1 MiB, rows, mean over GPUs in %."""
    for net in (*OPS, SMALL_ALL_REDUCE):
        found = errors(net, data)
        found = found.assign(side=np.where(found["size"] < MIB, "below 1 MiB", "from 1 MiB"))
        for (protocol, side), part in found.groupby(["protocol", "side"], observed=True):
            mean = part.groupby("gpu", observed=True)["error"].mean().mean()
            yield net, protocol, side, len(part), round(100 * float(mean), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    for line in table(parser.parse_args().data):
        print(*line, sep=" | ")


if __name__ == "__main__":
    main()

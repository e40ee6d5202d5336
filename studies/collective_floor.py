"""What no estimate can foretell of profiled all-reduces: `python -m studies.collective_floor [--data DIR]`.

The profiler's rows hold a call's own time and its rank's wait for the others. Where the wait is most of it, messages
that differ by a few per cent in size differ by factors in time. A line a GPU and side of 1 MiB: rows; the error of each
row against the median of the rows within 5 % of its size in its own series; the best error that any number could have
there; the share of rows above twice that series' fastest tenth.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from studies.collective_series import SERIES
from studies.collective_sizes import MIB
from train.registry import frame_of

NEAR = np.log2(1.05)
FEWEST = 5  # neighbours, for a row to count
WAITS = 2.0  # times the fastest tenth of its neighbours
TRIED = np.linspace(0.0, 1.0, 41)  # quantiles of the neighbours among which the best number is looked for


def scored(series: pd.DataFrame) -> Iterator[tuple[str, float, float, bool]]:
    """Side, error against the neighbours' median, best error of any number, and whether it waits, of each row."""
    series = series.sort_values("bytes")
    size, time = np.log2(series["bytes"].to_numpy(float)), series["latency_us"].to_numpy(float)
    first, last = np.searchsorted(size, size - NEAR), np.searchsorted(size, size + NEAR, side="right")
    for at, (low, high) in enumerate(zip(first, last, strict=True)):
        near = np.delete(time[low:high], at - low)
        if len(near) < FEWEST:
            continue
        tried = np.quantile(near, TRIED)
        best = np.abs(tried[:, None] / time[None, low:high] - 1.0).mean(axis=1).min()
        side = "below 1 MiB" if size[at] < MIB else "from 1 MiB"
        yield side, abs(float(np.median(near)) / time[at] - 1.0), float(best), time[at] > WAITS * np.quantile(near, 0.1)


def table(data: Path | None) -> Iterator[tuple[object, ...]]:
    """GPU, side, rows, error against neighbours, least error, share that waits, all three in %."""
    frame = frame_of("all_reduce", data)
    frame = frame[(frame["protocol"] == "profiler_warm") & (frame["dtype"] == "fp16") & (frame["world"] > 1)]
    for gpu, of_gpu in frame.groupby("gpu", observed=True):
        parts = (scored(series) for _, series in of_gpu.groupby(SERIES, dropna=False, observed=True))
        rows = pd.DataFrame([row for part in parts for row in part], columns=["side", "near", "best", "waits"])
        for side, found in rows.groupby("side"):
            yield (
                gpu,
                side,
                len(found),
                *(round(100 * float(found[name].mean()), 1) for name in ("near", "best", "waits")),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    print("GPU | side | rows | error against neighbours | least error | share that waits")
    for line in table(parser.parse_args().data):
        print(*line, sep=" | ")


if __name__ == "__main__":
    main()

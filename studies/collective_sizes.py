"""Collectives by message size, sizes held out: `python -m studies.collective_sizes --runs DIR [--json FILE] [--cells]`.

DIR is where `python -m train fit` left its runs. Each of the folds 0 to 4 holds out the message sizes of its groups, on
all GPUs and fabrics; a row is scored by members that saw none of its group.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.collective.algorithms import CUSTOM_BELOW
from pipewave.kernels.collective.family import SMALL_ALL_REDUCE
from train.nets.collective import OPS
from train.rows import Rows, load
from train.run import load_predictions
from train.splits import by_name, meet

MIB = 20  # log2 of bytes
Floats = NDArray[np.float64]


def answered(net: str, rows: Rows) -> NDArray[np.bool_]:
    """Rows that a net answers: that of small all-reduces learns from larger ones, which another net answers."""
    below = rows.features[:, rows.names.index("log_bytes")] < np.log2(CUSTOM_BELOW)
    return np.asarray(below | (net != SMALL_ALL_REDUCE))


def held_out(folder: Path) -> Iterator[tuple[str, str, Floats, Floats]]:
    """Protocol and GPU of scored rows with log2 of their bytes and the relative error of each."""
    rows, predictions = load(folder / "rows.npz"), load_predictions(folder / "net")
    text = {name: rows.columns[name].text() for name in ("protocol", "gpu")}
    size = rows.features[:, rows.names.index("log_bytes")]
    for name in (name for name in predictions if name.startswith("fold:")):
        index, counted = by_name(name, rows).score, meet(rows, ["counted=yes"])
        error = np.abs(np.expm1(predictions[name][0] - rows.residual[index]))[counted[index]]
        index = index[counted[index]]
        for key in sorted(set(zip(text["protocol"][index], text["gpu"][index], strict=True))):
            at = (text["protocol"][index] == key[0]) & (text["gpu"][index] == key[1])
            yield str(key[0]), str(key[1]), size[index][at].astype(float), error[at]


def table(runs: Path) -> list[dict[str, object]]:
    """One line an operation, protocol and side of 1 MiB: mean error in %, over rows of a GPU, then over GPUs."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for net in (*OPS, SMALL_ALL_REDUCE):
        for protocol, gpu, size, error in held_out(runs / net):
            for side, at in (("below 1 MiB", size < MIB), ("from 1 MiB", size >= MIB)):
                found.setdefault((net, protocol, side, gpu), []).extend(error[at].tolist())
    means = {key: 100 * float(np.mean(values)) for key, values in found.items() if values}
    lines = []
    for net, protocol, side in dict.fromkeys(key[:3] for key in means):
        of = {gpu: value for (*where, gpu), value in means.items() if tuple(where) == (net, protocol, side)}
        rows = sum(len(values) for (*where, _), values in found.items() if tuple(where) == (net, protocol, side))
        worst = max(of, key=lambda gpu: of[gpu])
        where = {"net": net, "protocol": protocol, "side": side, "rows": rows}
        mean = round(float(np.mean(list(of.values()))), 2)
        lines.append(where | {"mape": mean, "worst": worst, "worst_mape": round(of[worst], 2)})
    return lines


def cells(runs: Path) -> Iterator[tuple[object, ...]]:
    """Net, protocol, GPU, stack, log2 of ranks and of bytes, rows, mean error and spread of their latency in %."""
    for net in (*OPS, SMALL_ALL_REDUCE):
        rows, predictions = load(runs / net / "rows.npz"), load_predictions(runs / net / "net")
        context = {name: rows.columns[name].text() for name in ("protocol", "gpu", "stack")}
        context |= {name: np.rint(rows.features[:, rows.names.index(name)]) for name in ("log_world", "log_bytes")}
        splits = [name for name in predictions if name.startswith("fold:")]
        index = np.concatenate([by_name(name, rows).score for name in splits])
        means = np.concatenate([predictions[name][0] for name in splits])
        error, latency = np.abs(np.expm1(means - rows.residual[index])), rows.latency_us[index]
        keys = list(zip(*(column[index].tolist() for column in context.values()), strict=True))
        for key in sorted(set(keys)):
            at = np.array([one == key for one in keys])
            yield (
                net,
                *key,
                at.sum(),
                round(100 * error[at].mean(), 1),
                round(100 * latency[at].std() / latency[at].mean()),
            )


def show(lines: Sequence[Mapping[str, object]], path: Path | None) -> None:
    """Print the lines of a table, and write them where a path is given."""
    for line in lines:
        print(*line.values(), sep=" | ")
    if path:
        path.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cells", action="store_true", help="error and spread by stack, ranks and octave instead")
    options = parser.parse_args()
    if options.cells:
        for cell in cells(options.runs):
            print(*cell, sep=" | ")
        return
    show(table(options.runs), options.json)


if __name__ == "__main__":
    main()

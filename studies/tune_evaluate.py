"""Replay recordings through the shipped tables: `python -m studies.tune_evaluate [--kernels gemm,…] [--json]`. No GPU.

Regret of `load_table(kernel).select` at shapes never fitted.

The optimum of a shape is the configuration that was fastest in one half of the repeats; the choice, the optimum too, is
then scored on the other half. Both ways round, averaged.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.own_kernels.measured import Measured, measured
from lab.own_kernels.recording import TEST, Recording
from lab.own_kernels.shapes import Shape, lengths
from lab.own_kernels.space import space
from pipewave.cli.streams import show
from pipewave.errors import BadFile
from pipewave.tune import load_table
from pipewave.tune.shipped_kernels import SHAPE_FIELDS, defaults, family
from pipewave.tune.tables import KERNELS

RECORDINGS = Path("data/recordings/h200")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROUNDS = 9  # in which decisions are timed
SLOWER = 0.02  # a choice is slower than the default from here on


def regrets(halves: Floats, chosen: Ints) -> Floats:
    """Regret [s] of chosen configurations [s] from halves [s, c, 2]: optimum on one half, both scored on the other.

    A choice that was timed in one half only (an anchor's slow ones are) is scored on that half.
    """
    at = np.arange(len(halves))
    found = []
    for seen, scored in ((0, 1), (1, 0)):
        best = np.nanargmin(halves[..., seen], axis=1)
        found.append(halves[at, chosen, scored] / halves[at, best, scored] - 1)
    return np.asarray(np.nanmean(found, axis=0))


def summary(lost: Floats) -> dict[str, float]:
    """Return the figures of some regrets, as fractions."""
    return {"mean_regret": float(lost.mean()), "p95_regret": float(np.quantile(lost, 0.95)),
            "worst_regret": float(lost.max()), "share_of_optimum": float(np.mean(1 / (1 + lost)))}  # fmt: skip


def noise(halves: Floats) -> dict[str, float]:
    """How far the repeats alone are from agreeing: regret of one half's optimum against the other half's own."""
    at = np.arange(len(halves))
    lost = np.mean(
        [halves[at, np.nanargmin(halves[..., 1 - half], axis=1), half] / np.nanmin(halves[..., half], axis=1) - 1
         for half in (0, 1)], axis=0)  # fmt: skip
    return summary(lost)


def recorded(folder: Path) -> list[str]:
    """Return the kernels recorded in a folder. BadFile where there is none."""
    found = [kernel for kernel in KERNELS if (folder / f"{kernel}.npz").exists()]
    if not found:
        raise BadFile(
            f"{folder} holds no recording; they live in data/recordings of the repository", field="recordings"
        )
    return found


def evaluate_all(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Score the shipped tables on recordings of a folder: {"kernels": {kernel: {"shapes", "selectors": …}}}.

    Raises:
        BadFile: no such recording.
    """
    found = {}
    for kernel in names:
        found[kernel] = evaluate(Recording.load(folder / f"{kernel}.npz"))
        pairs = folder / f"pairs_{kernel}.npz"
        if pairs.exists():
            found[kernel]["against_default"] = against_default(Recording.load(pairs))
    return {"kernels": found}


def evaluate(recording: Recording, table: Any = None) -> dict[str, Any]:
    """Score a table (default: that of the GPU) at the test shapes of one recording, with its load known and unknown."""
    test = measured(recording, TEST)
    used = table or load_table(test.kernel, gpu=recording.meta["env"]["gpu"], env={})
    shapes, routed = _shapes(recording, TEST)
    scored = {}
    for name, known in (("pipewave", True), ("pipewave_load_unknown", False)):
        if known or test.load:
            every = zip(shapes, routed, strict=True)
            scored[name] = _scored(used, test, [asked(test.kernel, *one, known_load=known) for one in every])
    return {"shapes": len(test.us), "configurations": test.us.shape[1], "noise": noise(test.halves),
            "selectors": scored, "skipped": {}}  # fmt: skip


def _shapes(recording: Recording, role: int) -> tuple[list[Shape], list[list[int]]]:
    """Drawn shapes of a role, and the tokens that each expert got there."""
    rows = np.flatnonzero(recording.role == role)
    shapes = [dict(zip(recording.meta["fields"], row, strict=True)) for row in recording.shapes[rows].tolist()]
    return shapes, recording.counts[rows].tolist()


def asked(kernel: str, shape: Shape, routed: Sequence[int], *, known_load: bool) -> dict[str, Any]:
    """Return a drawn shape as the arguments of `select`, `known_load` with tokens `routed` or the longest sequence."""
    fields: dict[str, Any] = {name: shape[name] for name in SHAPE_FIELDS[family(kernel)]}
    if family(kernel) == "decode":  # an engine knows how many tokens it has cached, hence their mean
        drawn = lengths(shape)
        fields["kv_len"] = mean = int(np.rint(drawn.mean()))
        return fields | ({"longest": max(mean, int(drawn.max()))} if known_load else {})
    return fields | ({"counts": tuple(routed)} if known_load and family(kernel) == "moe" else {})


def _scored(table: Any, test: Measured, wanted: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Regret, speed-up over the default, and µs of a decision for shapes not seen before."""
    chosen = np.array([table.configs.index(table.select(**one)) for one in wanted])
    default, at = defaults(test.kernel, test.config, test.shape), np.arange(len(test.us))
    gain = test.us[at, default] / test.us[at, chosen]
    return {**summary(regrets(test.halves, chosen)), "decision_us": median_us(table, wanted),
            "speed_up_geomean": float(np.exp(np.log(gain).mean())), "speed_up_max": float(gain.max()),
            "keeps_default": float(np.mean(chosen == default))}  # fmt: skip


def median_us(table: Any, wanted: Sequence[dict[str, Any]]) -> float:
    """Median µs of one decision on shapes that were forgotten again."""
    deciding = [(*table.key(one), one) for one in wanted]
    decide: Callable[[Any], Any] = lambda one: one[0].decide(one[1])  # noqa: E731
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for one in deciding:
            decide(one)
        taken.append((time.perf_counter() - start) / len(deciding) * 1e6)
    return float(np.median(taken))


def against_default(recording: Recording) -> dict[str, Any]:
    """Score what the GPU's table chooses now at the further shapes, and say at how many that was not timed.

    Beside the figures without the load, `load_known` has those with it, where a launch has one and it was recorded.
    """
    kernel = recording.meta["kernel"]
    table, (shapes, routed) = load_table(kernel, gpu=recording.meta["env"]["gpu"], env={}), _shapes(recording, TEST)
    routed = routed or [[]] * len(shapes)

    def choices(*, known_load: bool) -> list[int]:
        every = (asked(kernel, *one, known_load=known_load) for one in zip(shapes, routed, strict=True))
        return [table.configs.index(table.select(**one)) for one in every]

    found: dict[str, Any] = {**compare(recording, choices(known_load=False))}
    if family(kernel) == "decode" or recording.counts.any():
        found["load_known"] = compare(recording, choices(known_load=True))
    return found


def compare(recording: Recording, choices: Sequence[int]) -> dict[str, float]:
    """Return how often choices [s] are slower than the default by over 2 %, and the speed-up.

    Shapes where the choice was not timed are left out, and counted.
    """
    of = space(recording.meta["kernel"])
    shapes, _ = _shapes(recording, TEST)
    medians = [_medians(recording, i) for i in range(len(shapes))]
    timed = [(us[of.configs.index(of.default(shape))], us[choice])
             for us, shape, choice in zip(medians, shapes, choices, strict=True) if choice in us]  # fmt: skip
    default, chosen = np.array(timed).T
    gain = default / chosen
    return {"shapes": len(timed), "untimed": len(medians) - len(timed), "same": float(np.mean(default == chosen)),
            "slower_share": float(np.mean(chosen > (1 + SLOWER) * default)),
            "worst_slowdown": float((1 / gain).max() - 1),
            "speed_up_geomean": float(np.exp(np.log(gain).mean())), "speed_up_max": float(gain.max())}  # fmt: skip


def _medians(recording: Recording, shape: int) -> dict[int, float]:
    here = recording.row_shape == shape
    config, us = recording.row_config[here], recording.row_us[here]
    return {index: float(np.median(us[config == index])) for index in np.unique(config).tolist()}


def regret_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of one kernel's evaluation, regret in percent; last, what the repeats alone would make of the optimum."""
    rows = [{"selector": name, **_percent(found), "decision µs": found["decision_us"],
             "speed-up": round(found["speed_up_geomean"], 2), "at most": round(found["speed_up_max"], 2)}
            for name, found in result["selectors"].items()]  # fmt: skip
    floor = {"selector": "(noise of the repeats)", **_percent(result["noise"])}
    return [*rows, {**dict.fromkeys(rows[0] if rows else floor), **floor}]


def _percent(found: Mapping[str, float]) -> dict[str, float]:
    return {f"{name} %": round(100 * found[f"{name}_regret"], 2) for name in ("mean", "p95", "worst")}


def pairs_line(found: Mapping[str, Any]) -> str:
    """Say how the choice does against the default on further shapes."""
    known_load = found.get("load_known")
    return _pairs_line(found) + (f"\nwith the load known, {_pairs_line(known_load)}" if known_load else "")


def _pairs_line(found: Mapping[str, float]) -> str:
    return (f"{found['shapes']:.0f} further shapes: {found['slower_share']:.1%} slower than the default by over 2 %, "
            f"at worst {found['worst_slowdown']:.1%}; speed-up {found['speed_up_geomean']:.2f}×")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default="all")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    wanted = recorded(options.recordings) if options.kernels == "all" else options.kernels.split(",")
    answer = evaluate_all(options.recordings, wanted)
    if options.json:
        print(json.dumps(answer))
        return
    for kernel, result in answer["kernels"].items():
        show(regret_rows(result), "table", title=f"{kernel}: regret at {result['shapes']} shapes never profiled")
        if "against_default" in result:
            print(pairs_line(result["against_default"]))


if __name__ == "__main__":
    main()

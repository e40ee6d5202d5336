"""Recorded spaces of any kernel as T4 JSON, to be replayed without a GPU and exchanged with other tuners.

T4 is the result format of Kernel Tuner and its companions: one entry a configuration, with its runtimes in ms. Here a
file holds many launches of one kernel: `configuration` has the parameters and, as `shape.NAME`, the launch's sizes; one
entry a pair. What T4 has no place for stands in `metadata.pipewave`: card, project, the author's own choice, the counts
that were read of each launch. The mapping loses nothing: reading what was written gives the same space.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadFile
from pipewave.files.whole import write as replace
from pipewave.tune.law.anchors import Anchors, Floats, Ints, columns
from pipewave.tune.law.wave import COUNTS
from pipewave.tune.user_kernels.measuring import undisturbed

T4_VERSION = "1.0.0"
SUFFIX = ".t4.json.gz"
SHAPE = "shape."
INVALID = "compile"


@dataclass(frozen=True, slots=True)
class Space:
    """`shapes` sizes by name; `configs` parameters by name; `runs` [s][c] µs of each round, empty where it did not
    compile; `counts` [s, c, 6] as read; `resident` [s, c] or [c]; `default` [s]: the author's choice; `meta`: kernel,
    project, env, names of the sizes (`key`), seconds of compilation and timing.
    """  # fmt: skip

    meta: Mapping[str, Any]
    shapes: tuple[Mapping[str, int], ...]
    configs: tuple[Mapping[str, Any], ...]
    runs: tuple[tuple[tuple[float, ...], ...], ...]
    counts: Floats
    resident: Ints
    default: Ints
    is_test: tuple[bool, ...]

    def held(self) -> Ints:
        """Blocks [s, c] that an SM holds at once."""
        return np.broadcast_to(self.resident, self.counts.shape[:2])

    def halves(self) -> Floats:
        """Mean µs of even and of odd undisturbed rounds: [s, c, 2], NaN where there are none."""
        return np.array([[_halves(undisturbed(runs)) for runs in row] for row in self.runs])

    def us(self) -> Floats:
        """Mean µs of undisturbed rounds [s, c]."""
        return np.array([[_mean(undisturbed(runs)) for runs in row] for row in self.runs])

    def at(self) -> Floats:
        """Sizes [s, d]."""
        return np.array([list(shape.values()) for shape in self.shapes], float)

    def anchors(self, index: Ints) -> Anchors:
        """Launches to fit to."""
        return Anchors(self.at(), self.counts, self.us(), columns(self.configs), self.resident).take(index)


def _halves(runs: Sequence[float]) -> list[float]:
    """Means of even and of odd rounds; where only one round is left it stands for both."""
    return [_mean(runs[half::2] or runs) for half in (0, 1)]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def write(space: Space, path: Path) -> Path:
    """Write a space whole or not at all. BadFile if it cannot."""
    body = {"schema_version": T4_VERSION, "metadata": {"pipewave": _described(space)}, "results": _results(space)}
    replace(path, gzip.compress(json.dumps(body, separators=(",", ":")).encode(), mtime=0))
    return path


def _described(space: Space) -> dict[str, Any]:
    return {**space.meta, "configs": [dict(one) for one in space.configs],
            "shapes": [dict(one) for one in space.shapes],
            "counts": np.round(space.counts, 6).tolist(), "resident": space.resident.tolist(),
            "default": space.default.tolist(), "is_test": list(space.is_test)}  # fmt: skip


def _results(space: Space) -> list[dict[str, Any]]:
    stamp = str(space.meta.get("recorded", datetime.now(UTC).isoformat(timespec="seconds")))
    return [_result(stamp, shape, config, runs) for shape, row in zip(space.shapes, space.runs, strict=True)
            for config, runs in zip(space.configs, row, strict=True)]  # fmt: skip


def _result(stamp: str, shape: Mapping[str, int], config: Mapping[str, Any], runs: tuple[float, ...]) -> dict[str, Any]:
    ms = [float(f"{value / 1e3:.13g}") for value in runs]  # without the digits that only dividing brings
    measured = [{"name": "time", "value": float(np.median(ms)), "unit": "ms"}] if ms else []
    return {"timestamp": stamp, "configuration": {**config, **{SHAPE + name: size for name, size in shape.items()}},
            "times": {"compilation_time": 0, "framework": 0, "search_algorithm": 0, "validation": 0, "runtimes": ms},
            "invalidity": "correct" if ms else INVALID, "correctness": int(bool(ms)), "measurements": measured,
            "objectives": ["time"]}  # fmt: skip


def read(path: Path) -> Space:
    """Read a space. BadFile where it is missing, damaged or has no launches."""
    try:
        body = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        meta = dict(body["metadata"]["pipewave"])
        configs, shapes = tuple(meta.pop("configs")), tuple(meta.pop("shapes"))
        rows = [tuple(value * 1e3 for value in entry["times"]["runtimes"]) for entry in body["results"]]
        runs = tuple(tuple(rows[i : i + len(configs)]) for i in range(0, len(rows), len(configs)))
        counts = np.array(meta.pop("counts"), float).reshape(len(shapes), len(configs), COUNTS)
        return Space(meta, shapes, configs, runs, counts, np.array(meta.pop("resident"), np.int64),
                     np.array(meta.pop("default"), np.int64), tuple(meta.pop("is_test")))  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, EOFError) as problem:
        raise BadFile(f"{path} is not a readable space ({problem})", field="path") from problem


def found(folder: Path) -> list[Path]:
    """Spaces of a folder, by name. BadFile where there is none."""
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise BadFile(f"{folder} holds no space (*{SUFFIX})", field="spaces")
    return paths

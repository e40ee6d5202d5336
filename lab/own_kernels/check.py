"""The canary: time a few anchors again and say whether a table still holds.

A change of driver, compiler or clocks moves all times together (rescale: choices stand, predicted µs want a factor)
or moves them apart (re-profile: the ranking itself is in doubt).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lab.own_kernels.measured import measured
from lab.own_kernels.recording import ANCHOR, Recording
from pipewave.errors import BadFile
from pipewave.tune.user_kernels.offline import Verdict, judge

COUNT = 10
Timer = Callable[[Mapping[str, int], tuple[int, ...]], float]


def canary(recording: Recording, count: int = COUNT) -> list[dict[str, Any]]:
    """Pick anchors from short to long, each with its best configuration and µs."""
    anchors = measured(recording, ANCHOR)
    if not len(anchors.us):
        return []
    best = anchors.us.min(axis=1)
    order = np.argsort(best, kind="stable")
    picked = order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(int))]
    return [
        {
            "shape": {name: int(values[i]) for name, values in anchors.shape.items()},
            "config": recording.configs[anchors.us[i].argmin()].tolist(),
            "us": float(best[i]),
        }
        for i in picked
    ]


def check(meta: Mapping[str, Any], timer: Timer) -> Verdict:
    """Time the table's canary again.

    Raises:
        BadFile: the table carries none.
    """
    rows = meta.get("canary") or []
    if not rows:
        name = meta["kernel"]["name"]
        raise BadFile(f"the {name} table carries no anchors to time again; profile it anew", field="canary")
    return judge([row["us"] for row in rows], [timer(row["shape"], tuple(row["config"])) for row in rows])


def gpu_timer(kernel: str, repeats: int = 7) -> Timer:
    """Return the timer of the current GPU: cold L2, median of a few. Needs torch and triton."""
    from lab.own_kernels import build
    from lab.own_kernels.operands import Operands
    from lab.own_kernels.space import space
    from pipewave.tune.user_kernels.gpu import ColdTimer

    of = space(kernel)
    binaries: dict[tuple[int, ...], Any] = {}
    launcher = Operands(kernel, of.names, binaries)
    clock = ColdTimer()

    def time(shape: Mapping[str, int], config: tuple[int, ...]) -> float:
        key = config[: of.compiled]
        if key not in binaries:
            binaries[key] = build.compile_binary(kernel, key)
        launcher.prepare(dict(shape))
        calls = launcher.calls(config)
        return sorted(clock([calls] * (repeats + 2))[2:])[repeats // 2]

    return time

"""All files of a deployment: look up, profile, write, and say what was gained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files.whole import write as replace
from pipewave.tune.engine.lookups import Lookup, path_of, rules
from pipewave.tune.engine.profiling import Profiled, Timer, candidates, profile


def write_all(
    wanted: Sequence[Lookup], timer: Timer, out: Path, most: int = 8192, say: Callable[[str], None] = lambda _text: None
) -> list[dict[str, Any]]:
    """Profile every lookup and write its files below `out`; a row of the report for each kernel.

    A kernel that does not run here is reported with its reason, and costs the others nothing.
    """
    rows = []
    for of in wanted:
        say(f"{of.kind} {', '.join(of.used_by)}")
        try:
            made = profile(of, candidates(of), timer, most)
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as problem:
            rows.append(_row(of) | {"failed": f"{type(problem).__name__}: {problem}"[:200]})
            continue
        paths = [str(path) for path in _written(made, timer, out)]
        gain, (default_us, us) = made.gain(), made.timed_us()
        rows.append(_row(of) | {"files": paths, "speed_up": float(np.exp(np.log(gain).mean())),
                                "speed_up_max": float(gain.max()), "worst": float(1 / gain.min() - 1),
                                "tokens": list(made.anchors), "gain": gain.tolist(),
                                "default_us": default_us.tolist(), "us": us.tolist()})  # fmt: skip
    return rows


def _row(of: Lookup) -> dict[str, Any]:
    return {"kernel": of.kind, "used_by": ", ".join(of.used_by), "n": of.n, "k": of.k, "experts": of.e,
            "dtype": of.dtype, "found_by": rules()[of.engine][of.kind]["found_by"]}  # fmt: skip


def _written(made: Profiled, timer: Timer, out: Path) -> Iterator[Path]:
    device, triton = str(timer.env.get("gpu", "")), str(timer.env.get("triton", ""))
    for body, down in ((made.body, False), (made.down, True)):
        if body is not None:
            path = out / path_of(made.of, device, triton, down=down)
            replace(path, (json.dumps(body, indent=4) + "\n").encode())
            yield path

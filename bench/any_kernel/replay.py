"""Our own kernels as if nobody here had written them: `python -m bench.any_kernel.replay [--kernels …] [--anchors …]`.

The recorded spaces of the H200 (every configuration timed) are replayed through the door for any kernel: counts come
from reading the kernels' sources, not from `tune/mapping.py`. Regret is on the test shapes, that no fit sees; anchors
are drawn from the recorded ones, several times where few. Decisions are timed on test shapes, each for the first time
and then again. No GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.triton_kernels import gemm, prefill
from pipewave.tune.evaluate import regrets
from pipewave.tune.measured import Measured, measured
from pipewave.tune.own.anchors import Anchors
from pipewave.tune.own.chooser import Chooser
from pipewave.tune.own.described import described
from pipewave.tune.own.kinds import ELSEWHERE
from pipewave.tune.own.model import fit
from pipewave.tune.own.peaks import peaks_of
from pipewave.tune.own.sizes import Sizes, drawn, sizes
from pipewave.tune.own.works import Works
from pipewave.tune.reading.formula import inputs_of
from pipewave.tune.reading.inspect import Shaped
from pipewave.tune.recording import ANCHOR, TEST, Recording

RECORDINGS = Path("data/recordings/h200")
KERNELS = ("gemm", "gemm_fp8", "prefill_causal_128", "prefill_full_64")
DRAWS = 4  # of few anchors
Call = tuple[Any, Any, dict[str, Any], tuple[str, ...]]  # kernel, grid, arguments, sizes that upstream would key by


def call_of(kernel: str, s: Mapping[str, int]) -> Call:
    """One launch of a recorded kernel, as its user writes it."""
    if kernel.startswith("gemm"):
        m, n, k, width = s["m"], s["n"], s["k"], 1 if "fp8" in kernel else 2
        named = {"a": Shaped(m * k, width), "w": Shaped(n * k, width), "c": Shaped(m * n, 2), "scale": 1.0,
                 "M": m, "N": n, "K": k}  # fmt: skip
        return gemm.gemm, lambda c: (-(-m // c["BLOCK_M"]) * -(-n // c["BLOCK_N"]),), named, ("M", "N", "K")
    dim, heads, batch, q_len = int(kernel.rsplit("_", 1)[1]), s["heads"], s["batch"], s["q_len"]
    q, kv = Shaped(batch * q_len * heads * dim, 2), Shaped(batch * s["kv_len"] * s["kv_heads"] * dim, 2)
    named = {"q": q, "k": kv, "v": kv, "o": q, "scale": 0.1, "HEAD_DIM": dim, "CAUSAL": "causal" in kernel}
    named |= {name: s[name] for name in ("q_len", "kv_len", "heads", "kv_heads")}
    grid = lambda c: (batch * heads * -(-q_len // c["BLOCK_M"]), 1, 1)  # noqa: E731
    return prefill.prefill, grid, named, ("q_len", "kv_len", "heads", "kv_heads")


def read(kernel: str, some: Measured, works: Works) -> list[dict[str, Any]]:
    """Numbers of the launches of a recording, each read."""
    found = []
    for row in np.stack(list(some.shape.values()), axis=1).tolist():
        _, grid, named, _ = call_of(kernel, dict(zip(some.shape, row, strict=True)))
        numbers = inputs_of(grid, named, works.of.constants)
        works.read(grid, named, numbers)
        found.append(numbers)
    return found


def anchors_of(some: Measured, numbers: Sequence[Mapping[str, Any]], of: Sizes, works: Works) -> Anchors:
    """A recording's launches to fit to or to score."""
    counts = np.stack([works.counts(one) for one in numbers])
    return Anchors(of.at(numbers), counts, some.us, some.config, some.resident)


def replay(kernel: str, counts: Sequence[int], folder: Path = RECORDINGS) -> dict[str, Any]:
    """Regret by number of anchors, and µs of a decision with the last of them."""
    recording = Recording.load(folder / f"{kernel}.npz")
    some, test = measured(recording, ANCHOR), measured(recording, TEST)
    names = list(some.config)
    configs = [dict(zip(names, row, strict=True)) for row in np.stack(list(some.config.values()), axis=1).tolist()]
    function, _, _, key = call_of(kernel, {name: int(values[0]) for name, values in some.shape.items()})
    works, here = Works(described(function, configs, key)), peaks_of("NVIDIA H200")
    numbers, wanted = read(kernel, some, works), read(kernel, test, works)
    of = sizes(works.inputs, key, numbers)
    every, out = anchors_of(some, numbers, of, works), anchors_of(test, wanted, of, works)
    elsewhere = works.many(of.numbers(drawn(every.at, ELSEWHERE, seed=1)))
    rows, model = [], None
    for count in counts:
        lost = []
        for seed in range(DRAWS if count < len(every.us) else 1):
            pick = np.random.default_rng(seed).permutation(len(every.us))[:count]
            model = fit(every.take(pick), here, elsewhere)
            lost.append(regrets(test.halves, model.ranked(out.counts, out.logs).argmin(axis=1)))
        rows.append({"anchors": min(count, len(every.us)), "mean_regret": float(np.mean(lost)),
                     "worst_regret": float(np.mean([one.max() for one in lost]))})  # fmt: skip
    assert model is not None
    chooser = Chooser(works, of, model, np.arange(len(configs)), every.at)
    return {"configurations": len(configs), "test": len(out.us), "regret": rows} | decisions(chooser, wanted, test)


def decisions(chooser: Chooser, wanted: Sequence[Mapping[str, Any]], test: Measured) -> dict[str, float]:
    """Median µs of a decision: for sizes never asked for, at once and on average over some; for sizes asked for again.
    With what the fast decisions lose.
    """  # fmt: skip
    keys = [tuple(numbers[name] for name in chooser.inputs) for numbers in wanted]
    chooser.decide(keys[0])  # works out the short lists
    first, unseen, repeated, chosen = [], [], [], []
    for key in keys:
        first.append(_ns(chooser.decide, key, 1))
        unseen.append(_ns(chooser.decide, key, 20))
        chosen.append(chooser.choose(key))
        repeated.append(_ns(chooser.choose, key, 100))
    lost = regrets(test.halves, np.array(chosen))
    return {"fast_mean_regret": float(lost.mean()), "fast_worst_regret": float(lost.max()),
            "first_us": float(np.median(first)) / 1e3, "unseen_us": float(np.median(unseen)) / 1e3,
            "repeated_us": float(np.median(repeated)) / 1e3}  # fmt: skip


def _ns(call: Callable[[Any], Any], key: Any, times: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(times):
        call(key)
    return (time.perf_counter_ns() - start) / times


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--anchors", default="5,10,20,50")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    found = {
        kernel: replay(kernel, [int(n) for n in options.anchors.split(",")]) for kernel in options.kernels.split(",")
    }
    for kernel, each in found.items():
        print(f"{kernel}: {each['configurations']} configurations, {each['test']} test shapes")
        for row in each["regret"]:
            print(f"  {row['anchors']:5} anchors: mean regret {100 * row['mean_regret']:6.2f} %, "
                  f"worst {100 * row['worst_regret']:6.1f} %")  # fmt: skip
        print(f"  by short lists {100 * each['fast_mean_regret']:.2f} %, worst {100 * each['fast_worst_regret']:.1f} %")
        print(f"  decision {each['first_us']:.1f} µs at once, {each['unseen_us']:.1f} µs unseen, "
              f"{each['repeated_us']:.2f} µs repeated")  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Time the loop's layers on a GPU: `python -m bench.moe_loop.device --out DIR [--budget-s 300]`. Needs vLLM.

Compile everything ahead, profile our two products and make their tables (`--shipped` takes those that ship instead),
then for each layer run vLLM's fused experts (default configuration, own file, our tuner's choice) and ours in turns,
cold, by CUPTI. `DIR/loop.jsonl` is written row by row; `DIR/moe_up.npz`, `DIR/moe_down.npz` and `DIR/tables` hold the
profile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.moe_loop import choices, shapes, warm
from pipewave.errors import PipewaveError
from pipewave.tune import load_table
from pipewave.tune.record import say

ROUNDS = 7
FEW_PAIRS = 192  # up to so many the few-token path is timed, whichever path is taken
EXACT = 24  # layers compared with float64, and so many products at most
EXACT_SIZE = 6e7


class Layer:
    """One layer's data and ways to run it; `launchers` and `tables` are of the two products."""

    def __init__(self, shape: dict[str, Any], launchers: Sequence[Any], tables: Sequence[Any]) -> None:
        for launcher in launchers:
            launcher.prepare({name: shape[name] for name in shapes.FIELDS if name not in ("model", "tp")})
        self.up, self.down = launchers
        self.x, self.w13, self.w2, self.out = self.up.a, self.up.w, self.down.w, self.down.c
        self.chosen, self.weights = self.up.chosen, self.down.weights
        self.experts = shape["e"]
        self.configs = [dict(table.select(**choices.sizes(shape))) for table in tables]

    def ours_sorted(self) -> Any:
        """Sort, and both products with the tables' choices."""
        from pipewave.triton_kernels import moe_sort

        first, second = self.configs
        order = moe_sort.sort(self.chosen, self.experts, first["BLOCK_M"], second["BLOCK_M"])
        self.up.first(first, order, self.down.a, *self._binary(self.up, first))()
        for launch in self.down.second(second, order, *self._binary(self.down, second)):
            launch()
        return self.out

    @staticmethod
    def _binary(launcher: Any, config: dict[str, int]) -> Any:
        from pipewave.tune.space import space

        names = space(launcher.kernel).names[: space(launcher.kernel).compiled]
        return launcher.binaries[tuple(config[name] for name in names)]

    def ours_few(self) -> Any:
        """Stream weights for few tokens."""
        from pipewave.triton_kernels import moe_few
        from pipewave.tune import moe

        first, second = moe.few_configs(self.w2.shape[2])
        moe_few.launch_few_up(self.x, self.w13, self.down.a, self.chosen, first)
        return moe_few.launch_few_down(self.down.a, self.w2, self.out, self.weights, self.chosen, second)

    def ways(self, for_vllm: dict[str, dict[str, int]]) -> dict[str, Callable[[], Any]]:
        """Return everything to time."""
        found: dict[str, Callable[[], Any]] = {"ours_sorted": self.ours_sorted}
        if self.chosen.numel() <= FEW_PAIRS:
            found["ours_few"] = self.ours_few
        for name, config in for_vllm.items():
            found[name] = warm.call_vllm(self.x, self.w13, self.w2, self.weights, self.chosen, config)
        return found

    def exact(self) -> Any:
        """Compute the layer in float64, an expert at a time."""
        import torch

        expert, top_k = self.chosen.view(-1).long(), self.chosen.shape[1]
        each = torch.empty(len(expert), self.x.shape[1], dtype=torch.float64, device=self.x.device)
        for e in expert.unique().tolist():
            mine = (expert == e).nonzero()[:, 0]
            gate, high = (self.x[mine // top_k].double() @ self.w13[e].double().T).chunk(2, 1)
            each[mine] = (torch.nn.functional.silu(gate) * high) @ self.w2[e].double().T
        return (each * self.weights.double().view(-1, 1)).view(-1, top_k, self.x.shape[1]).sum(1)


def error(found: Any, wanted: Any) -> float:
    """Relative, in the 2-norm."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def timed(ways: dict[str, Callable[[], Any]], flush: Callable[[], Any]) -> dict[str, dict[str, Any]]:
    """Run all ways ROUNDS times in shuffled turns; returns median, extremes and kernels of each."""
    from pipewave.measure.brackets import summarize
    from pipewave.measure.protocol import bracketed

    names = [name for turn in range(ROUNDS) for name in random.Random(turn).sample(sorted(ways), len(ways))]
    runs: dict[str, list[Any]] = defaultdict(list)
    for name, attempt in zip(names, bracketed([ways[name] for name in names], flush, 1, lambda: None), strict=True):
        if isinstance(attempt, Exception):
            raise attempt
        runs[name] += attempt
    found = {}
    for name, brackets in runs.items():
        brackets.sort(key=lambda bracket: bracket.latency_us)
        t = summarize(brackets)
        kernels = [[event.name[:40], round(event.duration_us, 2)] for event in brackets[len(brackets) // 2].events]
        found[name] = {"us": t.latency_us, "min_us": t.min_us, "max_us": t.max_us, "kernels": kernels}
    return found


def measure(shape: dict[str, Any], layer: Layer, for_vllm: dict[str, Any], flush: Any, exact: bool) -> dict[str, Any]:
    """Run, compare and time every way at one layer."""
    import torch

    from pipewave.tune import moe

    ways = layer.ways(for_vllm)
    outs = {name: call().clone() for name, call in ways.items()}
    wanted = layer.exact() if exact else outs["vllm_default"]
    errors = {name: error(out, wanted) for name, out in outs.items()}
    del outs
    few = moe.is_few(*(shape[name] for name in choices.SIZES))
    counts = torch.bincount(layer.chosen.view(-1).long(), minlength=layer.experts).tolist()
    return {"shape": shape, "ways": timed(ways, flush), "errors": errors, "exact": exact, "counts": counts,
            "few": few, "ours": layer.configs, "vllm": for_vllm}  # fmt: skip


def loop(out: Path, launchers: Sequence[Any], tables: Sequence[Any], deadline: float) -> None:
    """Measure every layer of the list, shuffled, until the deadline."""
    from pipewave.measure.protocol import Flusher, is_fatal, recoverable

    rows, flush = shapes.load(), Flusher().call("write")
    failures: tuple[type[Exception], ...] = (PipewaveError, *recoverable())
    for_vllm = choices.for_vllm(rows)
    order, exact = random.Random(1).sample(range(len(rows)), len(rows)), 0
    with (out / "loop.jsonl").open("a", buffering=1) as file:
        for done, i in enumerate(order):
            if time.monotonic() > deadline:
                say(f"budget spent after {done} layers")
                return
            shape = dict(rows[i])
            small = exact < EXACT and shape["m"] * shape["top_k"] * shape["inter"] < EXACT_SIZE
            try:
                found = measure(shape, Layer(shape, launchers, tables), for_vllm[i], flush, small)
            except failures as failure:
                say(f"{shape}\n{traceback.format_exc()[-900:]}")
                file.write(json.dumps({"shape": shape, "failed": str(failure)[:300]}) + "\n")
                if is_fatal(failure):
                    raise
                continue
            exact += small
            file.write(json.dumps(found) + "\n")
            us = {name: round(way["us"], 1) for name, way in found["ways"].items()}
            say(f"{done} {[shape[name] for name in choices.SIZES]} {us} {max(found['errors'].values()):.4f}")


def run(options: argparse.Namespace) -> None:
    """Do everything within the budget."""
    from pipewave.tune import build

    start = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    workers = max(1, (os.cpu_count() or 2) - 3)
    futures = build.build_all(["moe_up", "moe_down"], max(1, workers // 2))
    warming = warm.start(workers, options.out / "warm.log")
    # CUDA may start in this process only now: the compilers are forked.
    built = {kernel: [future.result() for future in some] for kernel, some in futures.items()}
    say(f"built ours: {time.monotonic() - start:.0f} s")
    from bench.moe_loop import profiling

    loaded = [profiling.load(kernel, futures[kernel]) for kernel in built]
    warm.wait(warming, options.warm_s)
    say(f"warm: {time.monotonic() - start:.0f} s")
    tables = [load_table(each[0].kernel) if options.shipped else _table(*each, options) for each in loaded]
    say(f"tables: {time.monotonic() - start:.0f} s")
    loop(options.out, [each[1] for each in loaded], tables, start + options.budget_s)
    say(f"done: {time.monotonic() - start:.0f} s")


def _table(of: Any, launcher: Any, built: Any, right: Any, options: argparse.Namespace) -> Any:
    """Profile one product and make its table."""
    from bench.moe_loop import profiling
    from pipewave.tune.lookup import lookup
    from pipewave.tune.making import write_table
    from pipewave.tune.table import read

    recording = profiling.profile(of, launcher, built, right, options.profile_s)
    recording.save(options.out / f"{of.kernel}.npz")
    return lookup(read(write_table(recording, options.out / "tables")))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget-s", type=float, default=300.0, help="when to stop, from the start of the run")
    parser.add_argument("--profile-s", type=float, default=40.0, help="seconds of timing for each product")
    parser.add_argument("--warm-s", type=float, default=110.0, help="longest wait for what compiles ahead")
    parser.add_argument("--shipped", action="store_true", help="take the tables that ship, profile nothing")
    parser.add_argument("--warm", default="", help="I/N: compile that share ahead, time nothing")
    options = parser.parse_args(argv)
    if options.warm:
        index, count = (int(part) for part in options.warm.split("/"))
        warm.share(shapes.load(), index, count)
        return
    run(options)


if __name__ == "__main__":
    main()

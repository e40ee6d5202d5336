"""Measure an engine's own kernels at a few numbers of tokens, and write the file that is right at every number.

A seam: `Timer` runs the engine's kernel (`engine.gpu`), or is made up in tests. Both products of routed experts are
timed as one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipewave.tune.engine.lookups import Lookup, path_of, rules
from pipewave.tune.export import entries, steady, tokens, write
from pipewave.tune.law.anchors import Anchors, Floats, Ints, Peaks, columns
from pipewave.tune.law.model import fit
from pipewave.tune.tables import description, formulas
from pipewave.tune.user_kernels.measuring import staged, undisturbed

Config = Mapping[str, int]
ANCHORS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
SLOWER = 0.02  # than the default: not at any launch that was measured
REPAIRS = 16


class Timer(Protocol):
    """An engine's kernels on a GPU."""

    peaks: Peaks
    env: Mapping[str, Any]

    def default(self, of: Lookup, m: int) -> Config:
        """What the engine runs without a file."""

    def time(self, of: Lookup, m: int, configs: Sequence[Config]) -> list[float]:
        """µs of each configuration in this order; NaN where it cannot run."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """`us` [anchors, c] µs; `default` [anchors] number of the engine's own; `body`: contents of the file."""

    anchors: tuple[int, ...]
    configs: tuple[Config, ...]
    us: Floats
    default: Ints
    body: Mapping[str, Any]

    def timed_us(self) -> tuple[Floats, Floats]:
        """µs of the default and of ours at each anchor, by the times measured and the file's own look-up."""
        at = np.arange(len(self.us))
        keys = [int(key) for key in self.body if key.isdigit()]
        nearest = [min(keys, key=lambda key: abs(key - m)) for m in self.anchors]  # the first of equals, as engines do
        chosen = [self.configs.index(self.body[str(key)]) for key in nearest]
        return np.asarray(self.us[at, self.default]), np.asarray(self.us[at, chosen])


def profile(of: Lookup, timer: Timer, most: int = 8192) -> Profiled:
    """Time the candidates and the engine's defaults, fit, and make the contents of the file."""
    anchors = tuple(m for m in ANCHORS if m <= most)
    defaults = [dict(timer.default(of, m)) for m in anchors]
    configs = [dict(one) for one in candidates(of)]
    configs += [one for i, one in enumerate(defaults) if one not in configs and one not in defaults[:i]]
    default = np.array([configs.index(one) for one in defaults])
    us = np.stack([_timed(of, m, configs, timer, int(known)) for m, known in zip(anchors, default, strict=True)])
    m = tokens(most)
    body = _body(m, _predicted(of, anchors, configs, us, timer.peaks, m), configs, us, default, anchors)
    if rules()[of.engine][of.kind]["keeps_triton_version"]:
        body = {"triton_version": str(timer.env.get("triton", "")), **body}
    return Profiled(anchors, tuple(configs), us, default, body)


def _timed(of: Lookup, m: int, configs: Sequence[Config], timer: Timer, default: int) -> Floats:
    """µs [c] at one number of tokens: in rounds, the close ones and the default again and again. The first round, which
    loads binaries, only tells which run.
    """

    def timed(order: Sequence[int]) -> list[float]:
        return timer.time(of, m, [configs[index] for index in order])

    usable = [index for index, us in enumerate(timed(range(len(configs)))) if np.isfinite(us)]
    taken: dict[int, list[float]] = {}
    staged(timed, usable, taken, always=[default])
    return np.array([np.mean(undisturbed(taken[i])) if i in taken else np.nan for i in range(len(configs))])


def counts(of: Lookup, m: Ints, configs: Sequence[Config]) -> Floats:
    """Counts [m, c, 7] at numbers of tokens, as those of a shipped kernel that is alike. Routed experts are as their
    first product with the bytes and FLOPs of both.
    """
    named = tuple({name.replace("SIZE_", ""): value for name, value in config.items()} for config in configs)
    sizes = {"n": of.n, "k": of.k}
    if of.kind == "moe":
        sizes = {"e": of.e, "top_k": of.top_k, "hidden": of.k, "inter": of.n}
    columns_of = {"m": m.astype(float), **{name: np.full(len(m), float(size)) for name, size in sizes.items()}}
    kernels = ("moe_w13", "moe_w2") if of.kind == "moe" else ("gemm_fp8",)
    found, *second = (
        formulas(kernel, {"m": 1, **sizes}, replace(description(kernel), configs=named)).many(columns_of)
        for kernel in kernels
    )
    for more in second:
        found[..., 3:] += more[..., 3:]
    return found


def _predicted(of: Lookup, anchors: Sequence[int], configs: Sequence[Config], us: Floats, peaks: Peaks,
               m: Ints) -> Floats:  # fmt: skip
    """Predict a kernel at all numbers of tokens, one sigma up: [m, c] µs, inf where it cannot run."""
    at, config, there = np.array(anchors, np.int64), columns(configs), counts(of, m, configs)
    # Engines' launchers do not state it; laws bend to what is measured.
    resident = np.maximum(1, 8 // config["num_warps"])
    measured = Anchors(at[:, None].astype(float), counts(of, at, configs), us, config, resident)
    model = fit(measured, peaks, there[:: max(1, len(m) // 128)])
    predicted = model.us(there, np.log(m[:, None].astype(float))) * np.exp(model.sigma)
    return np.asarray(np.where(np.isfinite(us).all(axis=0), predicted, np.inf))


def _body(m: Ints, predicted: Floats, configs: Sequence[Config], us: Floats,
          default: Ints, anchors: Sequence[int]) -> dict[str, Any]:  # fmt: skip
    """File contents; where a choice would be slower than the default at a launch measured, it is taken out there."""
    total = predicted.copy()
    region = np.abs(np.log(m[:, None]) - np.log(anchors)).argmin(axis=1)
    most = (1 + SLOWER) * us[np.arange(len(us)), default]
    for repair in range(REPAIRS):
        picked = steady(total)
        chosen = {int(m[row]): column for a, b, column in picked for row in range(a, b + 1)}
        wrong = [(row, chosen[tokens_of]) for row, tokens_of in enumerate(anchors)
                 if tokens_of in chosen and us[row, chosen[tokens_of]] > most[row]]  # fmt: skip
        if not wrong:
            break
        for row, config in wrong:
            total[region == row, config] = np.inf
            if repair >= REPAIRS // 2:  # nothing that was predicted to be fast is: the default stays
                total[region == row] = np.inf
                total[region == row, default[row]] = 1.0
    return entries(m, picked, configs)


def candidates(of: Lookup) -> tuple[Config, ...]:
    """Configurations to try: tiles that the scales allow and that fit, few enough for seconds a kernel."""
    block_scaled = of.blocks is not None
    wide = (32, 64, 128) if block_scaled else (32, 64, 128, 256)
    deep = (128,) if block_scaled else (64, 128)
    each = 1 if of.dtype.startswith(("fp8", "int8")) else 2
    every = itertools.product((16, 32, 64, 128), wide, deep, (3, 4), (1, 16))
    return tuple({"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": cols, "BLOCK_SIZE_K": depth, "GROUP_SIZE_M": group,
                  "num_warps": 8 if rows * cols >= 128 * 128 else 4, "num_stages": stages}
                 for rows, cols, depth, stages, group in every
                 if stages * (rows + cols) * depth * each <= 200_000)  # fmt: skip


def write_all(
    wanted: Sequence[Lookup], timer: Timer, out: Path, most: int = 8192, say: Callable[[str], None] = lambda _text: None
) -> list[dict[str, Any]]:
    """Profile every lookup and write its files below `out`; a row of the report for each kernel. A kernel that does not
    run here is reported with its reason, and costs the others nothing.
    """
    rows: list[dict[str, Any]] = []
    for of in wanted:
        row = {"kernel": of.kind, "used_by": ", ".join(of.used_by), "n": of.n, "k": of.k, "experts": of.e,
               "dtype": of.dtype, "found_by": rules()[of.engine][of.kind]["found_by"]}  # fmt: skip
        say(f"{of.kind} {row['used_by']}")
        try:
            made = profile(of, timer, most)
        # an engine of another version: a module or a function that it lacks or calls otherwise, a GPU that refuses
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as problem:
            rows.append(row | {"failed": f"{type(problem).__name__}: {problem}"[:200]})
            continue
        device, triton = str(timer.env.get("gpu", "")), str(timer.env.get("triton", ""))
        file = write(made.body, out / path_of(of, device, triton))
        default_us, us = made.timed_us()
        gain = default_us / us
        rows.append(row | {"files": [str(file)], "speed_up": float(np.exp(np.log(gain).mean())),
                                "speed_up_max": float(gain.max()), "worst": float(1 / gain.min() - 1),
                                "tokens": list(made.anchors), "gain": gain.tolist(),
                                "default_us": default_us.tolist(), "us": us.tolist()})  # fmt: skip
    return rows

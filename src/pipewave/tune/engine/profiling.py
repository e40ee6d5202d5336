"""Measure an engine's own kernels at a few numbers of tokens, and write the file that is right at every number.

A seam: `Timer` runs the engine's kernel (`engine.gpu`), or is made up in tests. Each product of a kernel (both of
routed experts, the one of a dense layer) gets laws of its own over the launches measured; their sum chooses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.engine.lookups import Lookup, path_of, rules, second_file
from pipewave.tune.export import entries, steady, tokens, write
from pipewave.tune.law.anchors import Anchors, Floats, Peaks, columns
from pipewave.tune.law.model import fit
from pipewave.tune.tables import description, formulas
from pipewave.tune.user_kernels.measuring import HICCUP, staged

Config = Mapping[str, int]
ANCHORS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
SLOWER = 0.02  # than the default: not at any launch that was measured
REPAIRS = 16
Bodies = tuple[dict[str, Any], dict[str, Any] | None]  # of the file, and of the second product's where it has one


class Timer(Protocol):
    """An engine's kernels on a GPU."""

    peaks: Peaks
    env: Mapping[str, Any]

    def default(self, of: Lookup, m: int) -> Config:
        """What the engine runs without a file."""

    def time(self, of: Lookup, m: int, configs: Sequence[Config]) -> list[tuple[float, ...]]:
        """µs of each product, for each configuration in this order; NaN where it cannot run."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """`us` [anchors, c, products] µs; `default` [anchors] number of the engine's own; `body`, `down`: file contents."""

    of: Lookup
    anchors: tuple[int, ...]
    configs: tuple[Config, ...]
    us: Floats
    default: NDArray[np.int64]
    body: Mapping[str, Any]
    down: Mapping[str, Any] | None

    def timed_us(self) -> tuple[Floats, Floats]:
        """µs of the default and of ours at each anchor, by the times measured and the file's own look-up."""
        total = self.us.sum(axis=2)
        at = np.arange(len(total))
        keys = [int(key) for key in self.body if key.isdigit()]
        nearest = [min(keys, key=lambda key: abs(key - m)) for m in self.anchors]  # the first of equals, as engines do
        chosen = [self.configs.index(self.body[str(key)]) for key in nearest]
        return np.asarray(total[at, self.default]), np.asarray(total[at, chosen])

    def gain(self) -> Floats:
        """Default µs over ours at each anchor."""
        default_us, us = self.timed_us()
        return default_us / us


def profile(of: Lookup, candidates: Sequence[Config], timer: Timer, most: int = 8192,
            anchors: Sequence[int] = ANCHORS) -> Profiled:  # fmt: skip
    """Time the candidates and the engine's defaults, fit, and make the contents of the file."""
    anchors = tuple(m for m in anchors if m <= most)
    defaults = [dict(timer.default(of, m)) for m in anchors]
    configs = [dict(one) for one in candidates]
    configs += [one for i, one in enumerate(defaults) if one not in configs and one not in defaults[:i]]
    default = np.array([configs.index(one) for one in defaults])
    us = np.stack([_timed(of, m, configs, timer, int(known)) for m, known in zip(anchors, default, strict=True)])
    m = tokens(most)
    products = [_predicted(of, product, anchors, configs, us[..., product], timer.peaks, m, whole=us.shape[2] == 1)
                for product in range(us.shape[2])]  # fmt: skip
    up, down = _bodies(of, products, configs, m, us, default, anchors)
    if rules()[of.engine][of.kind]["keeps_triton_version"]:
        up = {"triton_version": str(timer.env.get("triton", "")), **up}
    return Profiled(of, anchors, tuple(configs), us, default, up, down)


def _timed(of: Lookup, m: int, configs: Sequence[Config], timer: Timer, default: int) -> Floats:
    """µs [c, products] at one number of tokens: in rounds, the close ones and the default again and again.

    A launch that something disturbed does not count.
    """
    parts: dict[int, list[tuple[float, ...]]] = {}

    def sums(order: Sequence[int]) -> list[float]:
        found = timer.time(of, m, [configs[index] for index in order])
        for index, one in zip(order, found, strict=True):
            parts.setdefault(index, []).append(one)
        return [sum(one) for one in found]

    first = sums(range(len(configs)))
    usable = [index for index, value in enumerate(first) if np.isfinite(value)]
    staged(sums, usable, {}, always=[default])
    width = max(len(one) for many in parts.values() for one in many)
    out = np.full((len(configs), width), np.nan)
    for index in usable:
        runs = np.array(parts[index][1:] or parts[index])
        total = runs.sum(axis=1)
        out[index] = np.median(runs[total <= HICCUP * total.min()], axis=0)
    return out


def counts(of: Lookup, product: int, m: NDArray[np.int64], configs: Sequence[Config]) -> Floats:
    """Counts [m, c, 7] of one product at numbers of tokens, as those of a shipped kernel that is alike."""
    kernel = ("moe_w13", "moe_w2")[product] if of.kind == "moe" else "gemm_fp8"
    sizes = (
        {"e": of.e, "top_k": of.top_k, "hidden": of.k, "inter": of.n} if of.kind == "moe" else {"n": of.n, "k": of.k}
    )
    named = tuple({name.replace("SIZE_", ""): value for name, value in config.items()} for config in configs)
    described = replace(description(kernel), configs=named)
    made = formulas(kernel, {"m": 1, **sizes}, described)
    return made.many({"m": m.astype(float), **{name: np.full(len(m), float(size)) for name, size in sizes.items()}})


def _predicted(of: Lookup, product: int, anchors: Sequence[int], configs: Sequence[Config], us: Floats, peaks: Peaks,
               m: NDArray[np.int64], *, whole: bool) -> Floats:  # fmt: skip
    """Predict a product at all numbers of tokens, one sigma up: [m, c] µs, inf where it cannot run. Routed experts that
    were timed as a `whole` count the bytes and FLOPs of both products.
    """
    at, config = np.array(anchors, np.int64), columns(configs)
    here, there = counts(of, product, at, configs), counts(of, product, m, configs)
    if whole and of.kind == "moe":
        here[..., 3:] += counts(of, 1, at, configs)[..., 3:]
        there[..., 3:] += counts(of, 1, m, configs)[..., 3:]
    # Engines' launchers do not state it; laws bend to what is measured.
    resident = np.maximum(1, 8 // config["num_warps"])
    anchors_there = Anchors(at[:, None].astype(float), here, us, config, resident)
    model = fit(anchors_there, peaks, there[:: max(1, len(m) // 128)])
    predicted = model.us(there, np.log(m[:, None].astype(float))) * np.exp(model.sigma)
    return np.asarray(np.where(np.isfinite(us).all(axis=0), predicted, np.inf))


def _bodies(of: Lookup, products: Sequence[Floats], configs: Sequence[Config], m: NDArray[np.int64], us: Floats,
            default: NDArray[np.int64], anchors: Sequence[int]) -> Bodies:  # fmt: skip
    """File contents; where a choice would be slower than the default at a launch measured, it is taken out there."""
    block = columns(configs)["BLOCK_SIZE_M"]
    separate = second_file(of) and len(products) > 1
    partner = np.arange(len(configs))[None].repeat(len(m), axis=0)
    total = np.sum(products, axis=0)
    if separate:  # the second product may have a configuration of its own, with the same rows
        partner = np.stack([np.where(block == size, products[1], np.inf).argmin(axis=1) for size in block], axis=1)
        total = products[0] + np.take_along_axis(products[1], partner, axis=1)
    region = np.abs(np.log(m[:, None]) - np.log(anchors)).argmin(axis=1)
    measured = us.sum(axis=2)
    for repair in range(REPAIRS):
        picked = steady(total)
        chosen = {int(m[row]): column for a, b, column in picked for row in range(a, b + 1)}
        most = (1 + SLOWER) * measured[np.arange(len(measured)), default]
        wrong = [(row, chosen[tokens_of]) for row, tokens_of in enumerate(anchors)
                 if tokens_of in chosen and measured[row, chosen[tokens_of]] > most[row]]  # fmt: skip
        if not wrong:
            break
        for row, config in wrong:
            total[region == row, config] = np.inf
            if repair >= REPAIRS // 2:  # nothing that was predicted to be fast is: the default stays
                total[region == row] = np.inf
                total[region == row, default[row]] = 1.0
    up = _entries(picked, m, configs)
    if not separate:
        return up, None
    follow = [(a, b, int(partner[a, c])) for a, b, c in picked]
    return up, _entries(follow, m, configs)


def _entries(picked: Sequence[tuple[int, int, int]], m: NDArray[np.int64], configs: Sequence[Config]) -> dict[str, Any]:
    """Two keys a switch point, so that the nearest key is always of a number's own run."""
    plain = entries(m, list(picked), {"BLOCK_M": np.arange(len(configs))})
    return {key: dict(configs[value["BLOCK_SIZE_M"]]) for key, value in plain.items()}


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
    """Profile every lookup and write its files below `out`; a row of the report for each kernel.

    A kernel that does not run here is reported with its reason, and costs the others nothing.
    """
    rows: list[dict[str, Any]] = []
    for of in wanted:
        row = {"kernel": of.kind, "used_by": ", ".join(of.used_by), "n": of.n, "k": of.k, "experts": of.e,
               "dtype": of.dtype, "found_by": rules()[of.engine][of.kind]["found_by"]}  # fmt: skip
        say(f"{of.kind} {row['used_by']}")
        try:
            made = profile(of, candidates(of), timer, most)
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as problem:
            rows.append(row | {"failed": f"{type(problem).__name__}: {problem}"[:200]})
            continue
        device, triton = str(timer.env.get("gpu", "")), str(timer.env.get("triton", ""))
        paths = [str(write(body, out / path_of(of, device, triton, down=down)))
                 for body, down in ((made.body, False), (made.down, True)) if body is not None]  # fmt: skip
        gain, (default_us, us) = made.gain(), made.timed_us()
        rows.append(row | {"files": paths, "speed_up": float(np.exp(np.log(gain).mean())),
                                "speed_up_max": float(gain.max()), "worst": float(1 / gain.min() - 1),
                                "tokens": list(made.anchors), "gain": gain.tolist(),
                                "default_us": default_us.tolist(), "us": us.tolist()})  # fmt: skip
    return rows

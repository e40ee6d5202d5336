"""From a recording of a shipped kernel to its table: fit each kind of launch, work out short lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.own_kernels.build import function
from lab.own_kernels.measured import Measured, measured, routed_rows
from lab.own_kernels.recording import ANCHOR, Recording, flat
from pipewave.tune import store, tables
from pipewave.tune.chooser import CHUNK, Chooser
from pipewave.tune.law.anchors import Anchors, Floats, peaks_of
from pipewave.tune.law.margin import MARGINS
from pipewave.tune.law.model import fit
from pipewave.tune.shipped_kernels import SHAPE_FIELDS, defaults, family
from pipewave.tune.store import KindTable
from pipewave.tune.user_kernels.kernel import KernelDescription, Kind, source_hash
from pipewave.tune.user_kernels.launch_formulas import Sizes

Rng = np.random.Generator
Columns = dict[str, NDArray[Any]]
SAMPLES = 60_000  # launches drawn to work out short lists
MORE = 8  # candidates beyond those that win at a sample: cells are well sampled here
MOST_ANCHORS = 700  # fitted to: a fit costs their cube, and a table holds a weight for each and configuration
NOTED = 32  # launches that a table carries as examples


def table_of(recording: Recording, out: Path, samples: int = SAMPLES) -> Path:
    """Fit a recording's anchors and write the table (a minute, no GPU); returns its path."""
    kernel = recording.meta["kernel"]
    of, anchors = described(kernel), measured(recording, ANCHOR)
    anchors = anchors.take(np.random.default_rng(0).permutation(len(anchors.us))[:MOST_ANCHORS])
    kinds = {kind: _kind(kernel, anchors, recording.meta["env"], kind, samples)
             for kind in (tables.SHAPE, *((tables.LOAD,) if anchors.load else ()))}  # fmt: skip
    path = out / store.slug(recording.meta["env"]["gpu"]) / kernel
    return store.write_table(path, of, flat(recording.meta["env"]), kinds)


def described(kernel: str) -> KernelDescription:
    """A kernel as it is in this repository. Needs triton."""
    return replace(tables.description(kernel), source_sha256=source_hash(function(kernel)))


def sizes(kernel: str) -> tuple[str, ...]:
    """The numbers that launches of a shipped kernel are placed by."""
    return (*SHAPE_FIELDS[family(kernel)], *(("split_lines",) if kernel == "gemm_fp8" else ()))


def numbers_of(some: Measured, *, load: bool) -> Columns:
    """The numbers of recorded launches as columns [s], with their load if asked."""
    shape = {name: some.shape[name].astype(float) for name in SHAPE_FIELDS[family(some.kernel)]}
    return tables.with_derived(some.kernel, shape | (some.load if load else {}))


def _kind(kernel: str, some: Measured, env: Mapping[str, Any], kind: Kind, samples: int) -> KindTable:
    load = kind == tables.LOAD
    numbers, names = numbers_of(some, load=load), sizes(kernel)
    example = {name: float(values[0]) for name, values in numbers.items()}
    formulas, at = tables.formulas(kernel, example), np.stack([numbers[name] for name in names], axis=1)
    peaks = peaks_of(str(env["gpu"]), int(env["sm_count"]))
    anchors = Anchors(at, formulas.many(numbers), some.us, some.config, some.resident)
    model = fit(anchors, peaks, default=defaults(kernel, some.config, some.shape))
    if load:  # with the load known, wider margins cost more regret than they protect
        model = replace(model, margin=MARGINS[0], base=None)
    noted = [{name: float(values[i]) for name, values in numbers.items()} for i in range(min(NOTED, len(at)))]
    chooser = Chooser(formulas, Sizes(names, {}), model, np.arange(len(model.law)), at[:0],
                      default=lambda columns: _defaults(kernel, some, columns))  # fmt: skip
    drawn = draw(kernel, np.random.default_rng(0), samples, load=load)
    chooser.sample(drawn, np.stack([drawn[name] for name in names], axis=1), MORE, kept=0)
    return KindTable(model, noted, names, chooser.lists)


def _defaults(kernel: str, some: Measured, numbers: Mapping[str, Floats]) -> NDArray[np.int64]:
    shape = {name: numbers[name].astype(np.int64) for name in SHAPE_FIELDS[family(kernel)]}
    return defaults(kernel, some.config, shape)


def draw(kernel: str, rng: Rng, count: int, *, load: bool) -> Columns:
    """Draw launches of a kernel's whole domain, as columns, with their load if asked."""
    kind = family(kernel)
    shape: Columns = {name: values.astype(float) for name, values in _DRAWS[kind](rng, count).items()}
    if load and kind == "decode":
        shape["longest"] = np.rint(shape["kv_len"] * (1 + 0.5 * rng.random(count) * (rng.random(count) < 0.5)))
    elif load:
        shape |= _routings(kernel, rng, shape)
    return tables.with_derived(kernel, shape)


def _routings(kernel: str, rng: Rng, shape: Columns) -> Columns:
    """Loads of random routings; popularity of experts is log-normal, even for a third."""
    blocks = np.unique([config["BLOCK_M"] for config in tables.description(kernel).configs])
    parts = []
    for start in range(0, len(shape["m"]), CHUNK):
        e, pairs = (values[start : start + CHUNK].astype(int) for values in (shape["e"], shape["m"] * shape["top_k"]))
        chosen = np.arange(e.max()) < e[:, None]
        skew = rng.choice((0.0, 0.5, 1.0), (len(e), 1))
        popular = np.where(chosen, np.exp(skew * rng.standard_normal(chosen.shape)), 0.0)
        counts = rng.multinomial(pairs, popular / popular.sum(axis=1, keepdims=True))
        parts.append(routed_rows(counts, blocks))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _log(rng: Rng, low: float, high: float, count: int) -> NDArray[np.int64]:
    return np.asarray(np.rint(np.exp(rng.uniform(np.log(low), np.log(high), count))), np.int64)


def _rounded(rng: Rng, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Round half of the values up to a multiple of some power of two, as most sizes in use are."""
    step = 1 << (rng.random(len(values)) * np.frexp(values)[1]).astype(np.int64)
    return np.where(rng.random(len(values)) < 0.5, values, -(-values // step) * step)


def _gemm(rng: Rng, count: int) -> Columns:
    m, n, k = (_rounded(rng, _log(rng, 1, most, count)) for most in (16384, 512, 512))
    return {"m": m, "n": 64 * np.maximum(n, 4), "k": 64 * np.maximum(k, 4)}


def _moe(rng: Rng, count: int) -> Columns:
    e = rng.choice((8, 16, 32, 60, 64, 72, 128, 160, 256), count)
    top_k = rng.choice((1, 2, 4, 6, 8), count)
    m, hidden, inter = (
        _rounded(rng, _log(rng, least, most, count)) for least, most in ((1, 16384), (8, 128), (1, 128))
    )
    return {"m": m, "e": e, "top_k": top_k, "hidden": 64 * hidden, "inter": 64 * inter}


def _heads(rng: Rng, count: int) -> Columns:
    kv_heads = 1 << rng.integers(0, 6, count)
    group = rng.choice((1, 2, 4, 5, 6, 7, 8), count)
    return {"heads": kv_heads * group, "kv_heads": kv_heads}


def _prefill(rng: Rng, count: int) -> Columns:
    q_len = _rounded(rng, _log(rng, 1, 16384, count))
    prefix = np.where(rng.random(count) < 0.5, 0, _log(rng, 16, 16384, count))
    return {"batch": _log(rng, 1, 64, count), "q_len": q_len, "kv_len": q_len + prefix, **_heads(rng, count)}


def _decode(rng: Rng, count: int) -> Columns:
    return {"batch": _log(rng, 1, 512, count), "kv_len": _rounded(rng, _log(rng, 16, 131072, count)),
            **_heads(rng, count)}  # fmt: skip


_DRAWS: dict[str, Callable[[Rng, int], Columns]] = {
    "gemm": _gemm, "moe": _moe, "prefill": _prefill, "decode": _decode
}  # fmt: skip

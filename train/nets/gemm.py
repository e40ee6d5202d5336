"""Rows and features of the nets `gemm` (16-bit), `gemm_fp8`, `gemm_block` and `gemm_fp4`.

Held-out tables count at most 20,000 rows a GPU and type of the newest versions (`corpus.newest`). Training takes as
many of every version besides (`corpus.versions`); a column `counted` tells them apart.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find, names
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.family import FAMILY, NET_OF
from pipewave.nets.nets import UNKNOWN, Net
from pipewave.prediction.resolve import codes_of, resolve
from pipewave.software.stacks import PROTOCOLS
from train import corpus
from train.pack import pack
from train.rows import Rows

NETS = tuple(dict.fromkeys(NET_OF.values()))
CONTEXT = ("gpu", "dtype", "protocol", "stack", "impl", "quantize")
SHAPE = ("m", "n", "k")
LARGEST = (65_536, 131_072, 131_072)  # sizes that are drawn
# Eager modules of a few models, repeated and rounded: enough to learn the GPU and its protocol.
COARSE = ("llmservingsim", "vidur")
COARSE_ROWS = 3_000
EACH = 5_000  # rows of a version on a GPU
KEPT_BITS = 0xFFFFF000  # 12 bits of a feature's mantissa: 0.02 %, and the file is half as long

Floats = NDArray[np.float64]


def rows(net: str, data_dir: str | Path | None = None) -> pd.DataFrame:
    """Rows of a net's types of every version; `counted` marks those that held-out tables count."""
    frame = corpus.load("gemm", data_dir)
    frame = frame[frame["dtype"].map(NET_OF).eq(net) & ~_unusable(frame)]
    usable = frame.assign(flagged=frame["partial"])
    counted = corpus.newest(usable.reset_index(names="row"))["row"]
    drawn = corpus.versions(usable[~usable["source"].isin(COARSE)], max_rows=EACH).index
    counts, own = frame.index.isin(counted), corpus.is_own(frame)
    return frame.assign(counted=counts)[counts | own | frame.index.isin(drawn)].reset_index(drop=True)


def _unusable(frame: pd.DataFrame) -> pd.Series:
    """Flagged rows but for our own, which are flagged for a clock that long products lower by themselves."""
    coarse = frame["source"].isin(COARSE)
    surplus = coarse & (frame.sample(frac=1.0, random_state=0).groupby("gpu", observed=True).cumcount() >= COARSE_ROWS)
    return (frame["flagged"] & ~frame["partial"] & ~corpus.is_own(frame)) | surplus


def features(frame: pd.DataFrame) -> tuple[dict[str, Floats], Floats]:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    columns: dict[str, Floats] = {}
    base_us = np.empty(len(frame))
    sizes = {name: frame[name].to_numpy(np.float64) for name in (*SHAPE, "sm_clock_mhz")}
    for key, index in frame.groupby(list(CONTEXT), observed=True).indices.items():
        gpu, dtype, protocol, stack, impl, quantize = key
        options = (("quantize", bool(quantize)), ("tile", None))
        ctx = Context(find(str(gpu)), str(dtype), str(protocol), str(stack), str(impl), options)
        analysis = FAMILY.analyse({name: values[index] for name, values in sizes.items()}, ctx)
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            columns.setdefault(name, np.empty(len(frame)))[index] = values
    return columns, base_us


def build(net: str, data_dir: str | Path | None = None) -> Rows:
    """What `train.fit` learns from, with the column `counted` (yes or no)."""
    frame = rows(net, data_dir)
    packed = pack(frame, *features(frame))
    short = (packed.features.view(np.uint32) & np.uint32(KEPT_BITS)).view(np.float32)
    return replace(packed, features=short)


def drawn(net: str, seen_by: Net, each: int = 400, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features [call, feature] and codes [call, category] of drawn calls, `each` for every GPU that runs a type of the
    net and every software and protocol that the net tells apart.
    """
    rng, found = np.random.default_rng(seed), []
    for codes, ctx in _contexts(net, seen_by).items():
        sizes = {name: _sizes(rng, each, most) for name, most in zip(SHAPE, LARGEST, strict=True)}
        named = FAMILY.analyse(sizes, ctx).features
        found.append((np.stack([named[name] for name in seen_by.features], 1), np.tile(codes[0], (each, 1))))
    drawn_features, drawn_codes = map(np.concatenate, zip(*found, strict=True))
    return drawn_features.astype(np.float32), drawn_codes.astype(np.int64)


def _contexts(net: str, seen_by: Net) -> dict[tuple[tuple[int, ...], str, str], Context]:
    """By the net's codes, GPU and framework."""
    types, found = [dtype for dtype, name in NET_OF.items() if name == net], {}
    options = (("quantize", False), ("tile", None), ("variant", net))
    stacks = (None, *list(seen_by.categories["stack"])[1:])  # the first means unknown
    for gpu, dtype, protocol, stack in product(map(find, names()), types, PROTOCOLS, stacks):
        if gpu.supports(dtype):
            ctx, _ = resolve(FAMILY, gpu, dtype, protocol, stack, None, options)
            said = codes_of(ctx, net)
            codes = tuple(known.get(said.get(name, UNKNOWN), 0) for name, known in seen_by.categories.items())
            found.setdefault((codes, gpu.name, f"{ctx.framework} {protocol}"), ctx)
    return found


def _sizes(rng: np.random.Generator, count: int, most: int) -> Floats:
    """Most of them uniform in the logarithm, the others in size; multiples of this and that."""
    sizes = np.where(
        rng.random(count) < 0.7, np.exp(rng.uniform(0.0, np.log(most), count)), rng.uniform(1, most, count)
    )
    step = rng.choice([1, 8, 64, 128, 256], count)
    return np.maximum(np.round(sizes / step), 1.0) * step

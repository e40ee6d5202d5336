"""Rows and features of the nets `gemm` (16-bit), `gemm_fp8`, `gemm_block` and `gemm_fp4`.

Held-out tables count at most 20,000 rows a GPU and type of the newest versions (`corpus.newest`). Training takes as
many of every version besides (`corpus.versions`); a column `counted` tells them apart.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import corpus
from pipewave.kernels import family_of
from pipewave.kernels.gemm.family import NET_OF
from train.net import Net

CONTEXT = ("gpu", "dtype", "protocol", "stack", "impl", "quantize")
# Eager modules of a few models, repeated and rounded: enough to learn the GPU and its protocol.
COARSE = ("llmservingsim", "vidur")
COARSE_ROWS = 3_000
EACH = 5_000  # rows of a version on a GPU


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
    """Flagged rows (our own are, for a clock that long products lower by themselves) and builds between releases."""
    coarse = frame["source"].isin(COARSE)
    surplus = coarse & (frame.sample(frac=1.0, random_state=0).groupby("gpu", observed=True).cumcount() >= COARSE_ROWS)
    return (frame["flagged"] & ~frame["partial"] & ~corpus.is_own(frame)) | surplus | corpus.is_build(frame)


NETS = dict.fromkeys(NET_OF.values(), Net(rows, family_of("gemm"), ("gemm",), plans="gemm"))

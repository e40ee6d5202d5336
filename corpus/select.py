"""Which rows count: the newest version of each framework, nothing flagged, and no GPU drowning the others.

Training takes rows of every version besides (`versions`): as many of each, every group of shapes alike. Groups of
shapes are dealt into folds, of which shipped weights never see `HELD_OUT`, but for groups that are all there is of a
kernel.
"""

from __future__ import annotations

import re
import zlib
from functools import cache

import pandas as pd

from corpus.measured import CARDS as OWN

MAX_ROWS = 20_000
FOLDS = 10
HELD_OUT = 0  # shipped weights never see this fold
# Groups of that fold which are learned all the same: Kimi K2's experts (hidden, inter, top k, experts) are every row of
# 4-bit experts under SGLang since 0.5.12 and vLLM since 0.24, so that without them nothing is known of those kernels.
ONLY_ONES = ("7168,2048,8,384",)
LEARNED = FOLDS  # their fold: of no table
# A version is the newest for these, since a release may lack a dtype or a phase.
SERIES = ("source", "gpu", "framework", "dtype", "protocol", "phase", "kv_dtype", "quantize", "part", "op")
JUDGED = ("flagged", "partial", "noise")  # what cleaning says of a row
KERNEL = ("gpu", "protocol", "dtype", "phase", "kv_dtype", "quantize", "part", "op")


def newest(rows: pd.DataFrame, *, max_rows: int = MAX_ROWS, seed: int = 0) -> pd.DataFrame:
    """Unflagged rows of each framework's newest version, at most `max_rows` a GPU × kernel × dtype.

    The same rows come out for the same input, whatever happens to other GPUs or dtypes.
    """
    rows = rows[~rows["flagged"]]
    age = {name: rank for rank, name in enumerate(sorted(rows["version"].unique(), key=version_key))}
    rank = rows["version"].map(age).astype(int)
    latest = rank.groupby([rows[name] for name in SERIES if name in rows], observed=True).transform("max")
    return capped(rows[rank == latest], max_rows=max_rows, seed=seed)


def versions(rows: pd.DataFrame, *, max_rows: int) -> pd.DataFrame:
    """Unflagged rows of every version, at most `max_rows` a GPU × version × kernel × dtype, groups of shapes alike.

    A row's place in the draw hangs on nothing but the row: rules that drop others do not move it. Indices are kept.
    """
    rows = rows[~rows["flagged"] | rows["partial"]]
    drawn_by = pd.util.hash_pandas_object(rows.drop(columns=list(JUDGED), errors="ignore"), index=False)
    rows = rows.loc[drawn_by.sort_values(kind="stable").index]
    series = [rows[name] for name in (*SERIES, "version") if name in rows]
    turn = rows.groupby([*series, rows["group"]], observed=True).cumcount()
    first = rows.loc[turn.sort_values(kind="stable").index]
    drawn = first.groupby([first[one.name] for one in series], observed=True).cumcount() < max_rows
    return first[drawn].sort_index()


def of_every_version(rows: pd.DataFrame, others: pd.DataFrame, *, max_rows: int) -> pd.DataFrame:
    """The rows that held-out tables count (`newest`) and, of `others` among them, `max_rows` of each version; a column
    `counted` tells them apart. Indices are kept.
    """
    counted = rows.index.isin(newest(rows.reset_index(names="row"))["row"])
    drawn = rows.index.isin(versions(others, max_rows=max_rows).index)
    return rows.assign(counted=counted)[counted | drawn]


def capped(rows: pd.DataFrame, *, max_rows: int = MAX_ROWS, seed: int = 0) -> pd.DataFrame:
    """At most `max_rows` rows of each GPU × kernel × dtype, drawn without replacement.

    Our own rows are drawn apart, so that measuring more does not move the rows of the public accuracy tables.
    """
    kernel = [rows[name] for name in KERNEL if name in rows] + [is_own(rows).rename("own")]
    kept = [
        group if len(group) <= max_rows else group.sample(max_rows, random_state=seed)
        for _, group in rows.groupby(kernel, observed=True, sort=True)
    ]
    return pd.concat(kept).sort_index().reset_index(drop=True) if kept else rows.reset_index(drop=True)


def fold(group: str) -> int:
    """Fold of a group key."""
    return LEARNED if group in ONLY_ONES else zlib.crc32(group.encode()) % FOLDS


@cache
def version_key(version: str) -> tuple[tuple[int, str], ...]:
    """Orders `1.3.0rc9` before `1.3.0rc20` and `0.5.6.post2` before `0.5.10`."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|[a-z]+", version))


def is_own(rows: pd.DataFrame) -> pd.Series:
    """Rows measured by this project, whatever the card."""
    return rows["source"].astype(str).isin(OWN)


def is_build(rows: pd.DataFrame) -> pd.Series:
    """Rows of builds between releases, by their commit: nobody asks for these by name."""
    return rows["version"].astype(str).str.startswith("dev")


def by_default(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows without those of kernels that their stack's own code does not take by default: such rows say nothing
    of a version that is asked for by name and of which no row is known.
    """
    from pipewave.gpus import find
    from pipewave.prediction.fallback import default_impl

    if table != "attention":
        return frame
    keys = frame[["gpu", "stack", "impl"]].astype(str)
    kept = {
        key: default_impl("attention_", key[1], find(key[0]), "", "graph") in ("", key[2])
        for key in keys.drop_duplicates().itertuples(index=False, name=None)
    }
    return frame[[kept[key] for key in keys.itertuples(index=False, name=None)]]

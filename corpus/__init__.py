"""Measured latencies published by others and our own, read into one set of column names.

    import corpus
    rows = corpus.load("gemm")                  # every row of every source
    rows = corpus.training_rows("gemm")         # newest versions, unflagged, capped: what training uses

One file a source; `select` holds the choice of rows, `cache` remembers what was read. Columns: see `frame`.
"""

from __future__ import annotations

from corpus.cache import load, training_rows
from corpus.frame import FAMILIES
from corpus.measured import files as own_files
from corpus.select import MAX_ROWS, capped, is_build, is_own, newest, of_every_version, versions
from corpus.sources import data_dir

__all__ = [
    "FAMILIES",
    "MAX_ROWS",
    "capped",
    "data_dir",
    "is_build",
    "is_own",
    "load",
    "newest",
    "of_every_version",
    "own_files",
    "training_rows",
    "versions",
]

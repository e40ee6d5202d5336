"""Layers of routed experts whose Triton block sizes a framework ships tuned for a GPU, from the names of its files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.calls.dtypes import SIXTEEN_BIT
from pipewave.files import packaged
from pipewave.physics.demand import Array
from pipewave.software.stacks import version_of

# Framework → GPU → type → version that brought the `files` → [experts, width] of a rank.
TUNED = Path(__file__).with_name("tuned_experts.json")


def tuned(framework: str, version: tuple[int, ...], gpu: str, dtype: str, experts: Array, width: Array) -> Array:
    """1.0 where a framework ships Triton block sizes tuned for a GPU and so many experts of a rank, so wide on a rank;
    else 0.0 [call]. Without them it takes those of a plain rule, which can be two to four times slower.

    `gpu` is its registry name. Versions between those read count as the one before. Files are named by 8-bit and
    4-bit types only: the 16-bit ones share theirs.
    """
    return np.asarray(np.isin(_number(experts, width), _layers(framework, version, gpu, dtype)), np.float64)


@lru_cache(maxsize=1024)
def _layers(framework: str, version: tuple[int, ...], gpu: str, dtype: str) -> Array:
    """One number a layer that has a file."""
    of_gpu = packaged.shared(TUNED)["files"].get(framework, {}).get(gpu, {})
    by_version: Mapping[str, Any] = next(
        (of_gpu[kind] for kind in (dtype, *SIXTEEN_BIT.get(dtype, ())) if kind in of_gpu), {}
    )
    found = [layer for name, layers in by_version.items() if version_of(name) <= version for layer in layers]
    return _number(*np.array(found, np.float64).reshape(-1, 2).T)


def _number(experts: Array, width: Array) -> Array:
    return np.asarray(experts * 2.0**24 + width)

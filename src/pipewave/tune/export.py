"""Fused-MoE configuration files for vLLM and SGLang, with exact names and schemas.

Both engines look up the key nearest to M. Two keys at each switch point, the last M of one configuration and the first
of the next, make that look-up exact at every M. One file serves both GEMMs of a layer in vLLM, so the choice minimises
their sum; SGLang may use another configuration for the second one, with the same BLOCK_SIZE_M.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.files import whole
from pipewave.tune.engine.lookups import Lookup, file_name
from pipewave.tune.law.anchors import Floats, Ints
from pipewave.tune.tables import KernelTable

NAMES = {"BLOCK_M": "BLOCK_SIZE_M", "BLOCK_N": "BLOCK_SIZE_N", "BLOCK_K": "BLOCK_SIZE_K", "GROUP_M": "GROUP_SIZE_M"}
GRANULE, FREE = 16, 64  # above FREE rows, M is looked at in multiples of GRANULE: no block is smaller
SLACK = 0.02  # a configuration is kept while within this of the best: fewer switches, no noise followed


@dataclass(frozen=True, slots=True)
class Layer:
    """A MoE layer on one GPU: experts held there, experts chosen a token, hidden and intermediate sizes."""

    e: int
    top_k: int
    hidden: int
    inter: int

    def file(self, engine: str, device: str, dtype: str = "bf16", *, down: bool = False) -> str:
        """Name of the file that an engine looks up."""
        return file_name(Lookup(engine, "moe", self.inter, self.hidden, dtype, self.e, self.top_k), device, down=down)


def tokens(most: int) -> Ints:
    """Return the M at which anything can change, in ascending order."""
    return np.array([*range(1, FREE + 1), *range(FREE + GRANULE, most + 1, GRANULE)])


def steady(us: Floats, slack: float = SLACK) -> list[tuple[int, int, int]]:
    """Cover rows 0 … s−1 with the fewest runs (first, last, column) that stay within `slack` of each row's best."""
    fine = us <= (1 + slack) * us.min(axis=1, keepdims=True)
    found, start = [], 0
    while start < len(us):
        ends = np.where(fine[start:].all(axis=0), len(us) - start, (~fine[start:]).argmax(axis=0))
        reach = int(ends.max())
        among = np.flatnonzero(ends == reach)
        best = int(among[us[start : start + reach][:, among].sum(axis=0).argmin()])
        found.append((start, start + reach - 1, best))
        start += reach
    return found


def both(up: KernelTable, down: KernelTable, layer: Layer, most: int) -> tuple[Ints, Floats, Floats]:
    """M, µs of w13 [M, c], µs of w2 [M, c]. BadInput for a layer without experts or width."""
    if min(layer.e, layer.top_k, layer.hidden, layer.inter) < 1 or layer.top_k > layer.e:
        raise BadInput(f"{layer}: all sizes must be at least 1 and top_k at most e", field="layer")
    m = tokens(most)
    shape = {"m": m, **{name: np.full(len(m), size) for name, size in asdict(layer).items()}}
    return m, up.us(shape, sigmas=1.0), down.us(shape, sigmas=1.0)


def entries(
    m: Ints, picked: Sequence[tuple[int, int, int]], configs: Sequence[Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the body of a file: two keys a switch point, so that the nearest key is always of M's own run."""
    body: dict[str, dict[str, int]] = {}
    for first, last, column in picked:
        values = {NAMES.get(name, name): value for name, value in configs[column].items()}
        low = int(m[first - 1]) + 1 if first else 1  # M counts in granules: a run starts where the last one ended
        body[str(low)] = values
        body[str(int(m[last]))] = values
    return body


def vllm(up: KernelTable, down: KernelTable, layer: Layer, most: int = 8192) -> dict[str, Any]:
    """Return the body of vLLM's file for a layer."""
    m, first, second = both(up, down, layer, most)
    return {"triton_version": up.meta["env"]["triton"], **entries(m, steady(first + second), up.configs)}


def sglang(up: KernelTable, down: KernelTable, layer: Layer, most: int = 8192) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the bodies of SGLang's file and of its `_down` file; both have the same BLOCK_SIZE_M at every M."""
    m, first, second = both(up, down, layer, most)
    block = up.config["BLOCK_M"]
    partner = np.stack([np.where(block == size, second, np.inf).argmin(axis=1) for size in block], axis=1)
    total = first + np.take_along_axis(second, partner, axis=1)
    picked = steady(total)
    follow = [
        (a, b, int(np.where(block == block[c], second[a : b + 1].sum(axis=0), np.inf).argmin())) for a, b, c in picked
    ]
    return entries(m, picked, up.configs), entries(m, follow, down.configs)


def write(body: Mapping[str, Any], path: Path) -> Path:
    """Write one file, numbers sorted as the engines' own files are."""
    whole.write(path, (json.dumps(body, indent=4) + "\n").encode())
    return path

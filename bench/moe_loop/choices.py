"""Which configurations each way of running a layer takes, before anything is timed. Numpy only, but for vLLM's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipewave.tune.export import NAMES
from pipewave.tune.mapping import KIND_FIELDS
from pipewave.tune.space import MATMUL
from pipewave.tune.table import locate, read

Shape = Mapping[str, Any]
SIZES = KIND_FIELDS["moe"]
GPU = "H200"


def sizes(shape: Shape) -> dict[str, int]:
    """What a table is asked with."""
    return {name: int(shape[name]) for name in SIZES}


def tuned_for_vllm(shapes: Sequence[Shape]) -> list[dict[str, int]]:
    """Our tuner's choice for vLLM's kernel, which runs both products with one configuration, by the shipped tables."""
    up, down = (read(locate(kernel, GPU)).fitted for kernel in ("moe_w13", "moe_w2"))
    columns = {name: np.array([[shape[name]] for shape in shapes], float) for name in SIZES}
    best = (up.us(columns) + down.us(columns)).argmin(axis=1)
    return [{NAMES[name]: int(up.config[name][i]) for name in MATMUL} for i in best]


def vllm_default(shape: Shape) -> dict[str, int]:
    """What vLLM runs where it ships no file."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

    return dict(get_default_config(shape["m"], shape["e"], shape["inter"], shape["hidden"], shape["top_k"], None))


def vllm_file(shape: Shape) -> dict[str, int] | None:
    """What vLLM's own tuned file says, where it ships one for this card."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_moe_configs

    found = get_moe_configs(shape["e"], shape["inter"], None)
    return dict(found[min(found, key=lambda m: abs(m - shape["m"]))]) if found else None


def for_vllm(shapes: Sequence[Shape]) -> list[dict[str, dict[str, int]]]:
    """Name the configurations of vLLM's kernel at each shape: `vllm_default`, `vllm_tuned`, and `vllm_file` if any."""
    found = []
    for shape, tuned in zip(shapes, tuned_for_vllm(shapes), strict=True):
        ways, own = {"vllm_default": vllm_default(shape), "vllm_tuned": tuned}, vllm_file(shape)
        found.append(ways | ({"vllm_file": own} if own else {}))
    return found

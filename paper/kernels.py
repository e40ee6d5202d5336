"""The paper's kernels by name: their columns, the order of their features, and the target the estimator learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from paper import attention, demand, fused_moe, gemm_fp8, gemm_sm80, gemm_sm90, rmsnorm, silu_and_mul
from paper.demand import FMA, MEMORY, TENSOR, XU, Array, Demand, Features
from paper.hardware import Hardware, find
from pipewave.errors import BadInput, MissingField, UnknownField, UnknownKernel, did_you_mean, meant_or_known

if TYPE_CHECKING:
    from pipewave.gpus import GPU

# Persistent GEMMs; the released rows of Hopper and of the B200 follow this, workstation Blackwell does not.
PERSISTENT_GEMM_CAPABILITIES = (90, 100)
LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class Kernel:
    """One family: `columns` are whole numbers or arrays of them, `lists` the requests of one call."""

    demand: Callable[..., Demand]
    columns: tuple[str, ...]
    order: tuple[str, ...]
    reference: tuple[str, ...]
    lists: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def _gemm(hw: Hardware, **columns: Any) -> Demand:
    family = gemm_sm90 if hw.compute_capability in PERSISTENT_GEMM_CAPABILITIES else gemm_sm80
    found: Demand = family.demand(hw, **columns)
    return found


_MATRIX = TENSOR + MEMORY
_ROWWISE = FMA + XU + MEMORY
_TENSOR_CYCLES = ("tensor_all_cycle",)
_ROW_CYCLES = ("fma_all_cycle", "xu_all_cycle")

KERNELS: dict[str, Kernel] = {
    "gemm": Kernel(
        _gemm, ("m", "n", "k", "tile_m", "tile_n", "tile_k", "ctas"), _MATRIX, _TENSOR_CYCLES, options=("split_k",)
    ),
    "gemm_fp8": Kernel(gemm_fp8.demand, ("m", "n", "k"), _MATRIX, _TENSOR_CYCLES),
    "fused_moe": Kernel(
        fused_moe.demand,
        ("tokens", "experts", "topk", "hidden", "inter"),
        _MATRIX,
        _TENSOR_CYCLES,
        options=("part",),
    ),
    "attention": Kernel(
        attention.demand,
        ("heads", "kv_heads", "head_dim"),
        TENSOR + XU + MEMORY,
        _TENSOR_CYCLES,
        lists=("q_lens", "kv_lens"),
        options=("impl", "causal", "schedule", "kv_split_unit"),
    ),
    "rmsnorm": Kernel(rmsnorm.demand, ("rows", "dim"), _ROWWISE, _ROW_CYCLES),
    "silu_and_mul": Kernel(silu_and_mul.demand, ("rows", "input_dim"), _ROWWISE, _ROW_CYCLES),
}


def kernel(name: str) -> Kernel:
    """The family of that name; raises UnknownKernel."""
    if name not in KERNELS:
        raise UnknownKernel(
            f"the paper has no kernel {name!r}:{did_you_mean(name, KERNELS)} it has {', '.join(KERNELS)}",
            field="kernel",
        )
    return KERNELS[name]


def features(name: str, hardware: str | Hardware | GPU, **shape: Any) -> Features:
    """Features of a call by their published names, in the published order.

    Shapes are whole numbers or equally long arrays of them (attention: one call, `q_lens` and `kv_lens` list its
    requests). Cycles are SM clocks, `*_in_flight` KiB, `*_ops` operations. Raises BadInput and its subclasses.
    """
    family, hw = kernel(name), find(hardware)
    found = demand.features(family.demand(hw, **_checked(family, shape)), hw)
    return {feature: found[feature] for feature in family.order}


def overall_perf(name: str, hardware: str | Hardware | GPU, found: Mapping[str, Array], latency_us: ArrayLike) -> Array:
    """The learning target: reference cycles over measured cycles (dimensionless "efficiency")."""
    return _reference(name, found) / (np.asarray(latency_us, dtype=np.float64) * find(hardware).clock_mhz)


def latency_us(name: str, hardware: str | Hardware | GPU, found: Mapping[str, Array], perf: ArrayLike) -> Array:
    """Inverse of `overall_perf`."""
    return _reference(name, found) / (np.asarray(perf, dtype=np.float64) * find(hardware).clock_mhz)


def _reference(name: str, found: Mapping[str, Array]) -> Array:
    return np.asarray(sum(found[feature] for feature in kernel(name).reference), dtype=np.float64)


def _checked(family: Kernel, shape: Mapping[str, Any]) -> dict[str, Any]:
    needed = family.columns + family.lists
    known = needed + family.options
    for field in shape:
        if field not in known:
            raise UnknownField(f"unknown field {field!r}:{meant_or_known(field, known)}", field=field)
    for field in needed:
        if field not in shape:
            raise MissingField(f"{field} is missing; this kernel needs {', '.join(needed)}", field=field)
    return {field: _whole(field, value) if field in family.columns else value for field, value in shape.items()}


def _whole(field: str, value: ArrayLike) -> Array:
    numbers = np.asarray(value)
    inside = numbers.dtype.kind in "iuf" and bool(np.all((numbers >= 1) & (numbers <= LARGEST)))  # NaN fails both
    if not inside or np.any(numbers != np.floor(numbers)):
        raise BadInput(f"{field}={value!r} must be whole and between 1 and {LARGEST}", field=field)
    return numbers.astype(np.float64)

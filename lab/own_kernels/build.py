"""Compile every binary of a space ahead of time, in parallel, without touching a GPU.

Workers are forked before CUDA starts and share Triton's disk cache; the parent then loads each binary from it.
Needs triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lab.own_kernels.kernels import decode, gemm, grouped, prefill
from lab.own_kernels.space import Config, space
from pipewave.tune.rank import resources
from pipewave.tune.shipped_kernels import family

# How each kernel's arguments look to the compiler: pointer types, and integers known to be multiples of 16.
_BF16 = "*bf16"
_POINTERS = {
    "gemm": {"a": _BF16, "w": _BF16, "c": _BF16},
    "moe": {"a": _BF16, "w": _BF16, "c": _BF16, "weights": "*fp32", "sorted_ids": "*i32", "expert_ids": "*i32",
            "used_rows": "*i32"},
    "prefill": {"q": _BF16, "k": _BF16, "v": _BF16, "o": _BF16},
    "decode": {"q": _BF16, "k_cache": _BF16, "v_cache": _BF16, "o": _BF16, "part": "*fp32", "part_log": "*fp32",
               "tables": "*i32", "lens": "*i32"},
}  # fmt: skip
_FUNCTIONS = {"gemm": gemm.gemm, "moe": grouped.grouped_gemm, "prefill": prefill.prefill, "decode": decode.decode}
_MULTIPLES_OF_16 = ("N", "K")
PAGE = 16


@dataclass(frozen=True, slots=True)
class Built:
    """What the compiler reported of one binary. `error` is empty where it compiled."""

    smem_bytes: int
    registers: int
    spill_bytes: int
    error: str = ""


def function(kernel: str) -> Any:
    """Return the Triton function behind a kernel's name."""
    return _FUNCTIONS[family(kernel)]


def fixed(kernel: str) -> dict[str, int | bool]:
    """Constants of a kernel's binaries beside the configuration."""
    kind = family(kernel)
    if kind == "prefill":
        return {"HEAD_DIM": int(kernel.rsplit("_", 1)[1]), "CAUSAL": "causal" in kernel}
    if kind == "decode":
        return {"HEAD_DIM": int(kernel.rsplit("_", 1)[1]), "PAGE": PAGE, "BLOCK_H": 16}
    return {}


def _source(code: Any, pointers: dict[str, str], constants: dict[str, int | bool]) -> ASTSource:
    signature, attributes = {}, {}
    for position, name in enumerate(code.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name == "scale":
            signature[name] = "fp32"
        else:
            signature[name] = pointers.get(name, "i32")
        if pointers.get(name, "").startswith("*") or name in _MULTIPLES_OF_16:
            attributes[(position,)] = [["tt.divisibility", 16]]
    return ASTSource(code, signature, constants, attributes)


def compile_binary(kernel: str, binary: Config, capability: int = 90) -> tuple[Any, dict[str, int | bool]]:
    """Compile (or load from Triton's cache) one binary; returns it with the constants it was built with."""
    names = space(kernel).names
    values = dict(zip(names, binary, strict=False))
    options = {name: values.pop(name) for name in ("num_warps", "num_stages")}
    constants = values | fixed(kernel)
    pointers = _POINTERS[family(kernel)]
    if kernel == "gemm_fp8":
        pointers = pointers | {"a": "*fp8e4nv", "w": "*fp8e4nv"}
    source = _source(function(kernel), pointers, constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options), constants


def compile_reduce(head_dim: int, capability: int = 90) -> Any:
    """Compile the second kernel of split decode attention."""
    source = _source(decode.reduce, {"part": "*fp32", "part_log": "*fp32", "o": _BF16}, {"HEAD_DIM": head_dim})
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})


def build(kernel: str, binary: Config) -> Built:
    """Compile one binary and report on it; a failed compilation is reported, not raised."""
    try:
        compiled, _ = compile_binary(kernel, binary)
    except Exception as error:  # noqa: BLE001  the compiler raises whatever its passes raise; the caller drops the binary
        return Built(0, 0, 0, f"{type(error).__name__}: {error}"[:200])
    registers, stack = resources(compiled.asm["cubin"])
    return Built(compiled.metadata.shared, registers, stack)


def build_all(wanted: Iterable[str] | Mapping[str, Sequence[Config]], workers: int) -> dict[str, list[Future[Built]]]:
    """Start compiling on `workers` processes: every binary of the kernels named, or the binaries given for each.

    Call before CUDA starts: the workers are forked.
    """
    given = wanted if isinstance(wanted, Mapping) else {kernel: space(kernel).binaries() for kernel in wanted}
    pool = ProcessPoolExecutor(workers, mp_context=get_context("fork"))
    jobs = {kernel: [pool.submit(build, kernel, binary) for binary in some] for kernel, some in given.items()}
    pool.shutdown(wait=False)
    return jobs

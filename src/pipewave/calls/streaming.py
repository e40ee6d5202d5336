"""Kernels that stream memory: norms, gated activations, element-wise work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipewave.calls.fields import Call, documented, of


@dataclass(frozen=True, slots=True)
class RmsNorm(Call):
    """Row-wise RMS normalisation; `fused_add` also adds the residual and writes it back."""

    kernel: ClassVar[str] = "rmsnorm"
    rows: int = of("int")
    dim: int = of("int", high=1 << 24)
    fused_add: bool = of("bool", False)


@dataclass(frozen=True, slots=True)
class SiluAndMul(Call):
    """SiLU of one half times the other; `dim` is the output width, the input is rows × 2·dim."""

    kernel: ClassVar[str] = "silu_and_mul"
    rows: int = of("int")
    dim: int = of("int", high=1 << 24)


@dataclass(frozen=True, slots=True)
class Elementwise(Call):
    """Any kernel that only streams memory (RoPE, embedding rows, KV-cache write, sampling): named bytes in and out.

    `rounds`: steps of which each waits for the one before it, on values already read, such as the picks of a top-k.
    """

    kernel: ClassVar[str] = "elementwise"
    bytes_read: int = of("int", low=0, high=1 << 50)
    bytes_written: int = of("int", low=0, high=1 << 50)
    weight_bytes: int = of("int", 0, low=0, high=1 << 50)
    op: str = of("str", "elementwise")
    rounds: int = of("int", 0, low=0, high=1 << 16)


@documented
def rmsnorm(rows: int, dim: int, **options: Any) -> RmsNorm:
    """Root-mean-square normalisation of each row.

    Args:
        rows: rows (tokens).
        dim: elements of a row.
        **options: fields of `RmsNorm`: `fused_add` (adds the residual and writes it back), {options}.

    {call}

    Work: rows · dim elements in and out, twice each with `fused_add` (`kernels/streaming/norm.py`).
    """
    return RmsNorm(rows, dim, **options)


@documented
def silu_and_mul(rows: int, dim: int, **options: Any) -> SiluAndMul:
    """SiLU of one half of each row times the other half.

    Args:
        rows: rows (tokens).
        dim: elements of an output row; an input row has twice as many.
        **options: fields of `SiluAndMul`: {options}.

    {call}

    Work: 3 · rows · dim elements in and out (`kernels/streaming/norm.py`).
    """
    return SiluAndMul(rows, dim, **options)


@documented
def elementwise(bytes_read: int, bytes_written: int, **options: Any) -> Elementwise:
    """A kernel that only streams memory.

    Args:
        bytes_read: bytes in that the kernel before has just written.
        bytes_written: bytes out.
        **options: fields of `Elementwise`: `weight_bytes` (bytes in that come from DRAM), `op` (such as `rope`),
            `rounds`, {options}.

    {call}

    Work: the bytes as named (`kernels/streaming/stream.py`).
    """
    return Elementwise(bytes_read, bytes_written, **options)

"""Operand types of linear maps, with the bytes one weight takes together with its scales."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """Operand type of a linear map: `dtype` as a kernel call names it, bytes one weight takes with its scales.

    `quantize`: activations are quantised on the fly, which is work of its own.
    """

    dtype: str = "bf16"
    bytes_per_weight: float = 2.0
    quantize: bool = False

    @property
    def full(self) -> bool:
        """True for an unquantised 16-bit map."""
        return self.dtype in ("bf16", "fp16")


BF16 = Precision()
FP16 = Precision("fp16")
# Per output channel a scale vanishes beside a row of thousands of weights.
FP8 = Precision("fp8", 1.0, quantize=True)
FP8_BLOCK = Precision("fp8_block", 1.0 + 4 / 128**2, quantize=True)  # one fp32 scale per 128 × 128 block
INT8 = Precision("int8", 1.0, quantize=True)
NVFP4 = Precision("nvfp4", 0.5 + 1 / 16, quantize=True)  # one fp8 scale per 16 weights
MXFP4 = Precision("mxfp4", 0.5 + 1 / 32)  # one e8m0 scale per 32 weights; activations stay 16-bit on Hopper
MXFP8 = Precision("fp8", 1.0 + 1 / 32, quantize=True)  # one e8m0 scale per 32 weights


def int4(group: int, *, zeros: bool = True) -> Precision:
    """Weight-only 4-bit integers with a 16-bit scale (and a 4-bit zero point) per `group` weights; -1 = per row."""
    overhead = 0.0 if group <= 0 else (2 + (0.5 if zeros else 0)) / group
    return Precision("int4", 0.5 + overhead)


def int8(group: int, *, zeros: bool = True) -> Precision:
    """Weight-only 8-bit integers with a 16-bit scale (and an 8-bit zero point) per `group` weights; -1 = per row."""
    return Precision("int8", 1.0 + (0.0 if group <= 0 else (2 + (1 if zeros else 0)) / group))


@dataclass(frozen=True, slots=True)
class Linear:
    """y[rows, out] = x[rows, inp]·Wᵀ. `split` says how tensor parallelism cuts it: out, in, none, or qkv.

    `qkv` cuts `out` but keeps whole KV heads, so K and V are repeated when ranks outnumber KV heads.
    `cache` is the part of `out` that is K and V, `pair` the K and V columns of one KV head.
    `groups`: the map is block-diagonal, `groups` maps of out / groups × inp / groups.
    """

    name: str
    out: int
    inp: int
    split: str = "none"
    bias: bool = False
    precision: Precision = BF16
    cache: int = 0
    pair: int = 0
    groups: int = 1

    @property
    def params(self) -> int:
        """Weights and biases of the whole map."""
        return self.out * self.inp // self.groups + (self.out if self.bias else 0)

    def shape(self, tp: int) -> tuple[int, int]:
        """(out, inp) on one of `tp` ranks; of one block-diagonal map, all its blocks there."""
        if self.split == "in":
            return self.out, self.inp // tp
        if self.split == "out":
            return self.out // tp, self.inp
        if self.split == "qkv":
            kv = max(self.cache // tp, self.pair)
            return (self.out - self.cache) // tp + kv, self.inp
        return self.out, self.inp

    def weight_bytes(self, tp: int = 1) -> float:
        """Bytes of weights, scales and biases on one of `tp` ranks."""
        out, inp = self.shape(tp)
        return out * inp // self.groups * self.precision.bytes_per_weight + (2 * out if self.bias else 0)

"""Dense matrix product y[m,n] = x[m,k]·W[n,k]ᵀ: output tiles, waves over the SMs, L2-aware memory time, and power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipewave.calls.families import Gemm
from pipewave.kernels.base import Analysis, Columns, Context, Family, Grows, Sketch
from pipewave.kernels.gemm.cache_lines import unaligned
from pipewave.kernels.gemm.clock import slowdown
from pipewave.kernels.gemm.features import GemmTimes, features, times
from pipewave.kernels.gemm.machine import GemmMachine, machine
from pipewave.kernels.gemm.tiles import known_tile, tiling
from pipewave.kernels.gemm.traffic import Traffic, quantize_s, traffic, unfused_s
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.energy import Work

if TYPE_CHECKING:
    from pipewave.kernels.faces import Faces

# Types that run the same kernels share a net; the others differ in library, quantisation and pipe.
NET_OF = {
    **dict.fromkeys(("bf16", "fp16", "int4"), "gemm"),
    **dict.fromkeys(("fp8", "int8"), "gemm_fp8"),
    "fp8_block": "gemm_block",
    **dict.fromkeys(("nvfp4", "mxfp4"), "gemm_fp4"),
}


def net_of(case: Mapping[str, Any]) -> str:
    """The net that answers a case."""
    return NET_OF.get(case.get("dtype", "bf16"), "gemm")


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of GEMMs."""
    calls = len(cols["m"])
    if calls == 1:
        return formula({name: float(column[0]) for name, column in cols.items()}, ctx, SCALAR).analysis(1)
    return formula(cols, ctx, ARRAY).analysis(calls)


def formula(call: Columns, ctx: Context, xp: Arith) -> Sketch:
    """The same from numbers of one call (floats) or of many (arrays)."""
    m, n, k = call["m"], call["n"], call["k"]
    none = 0.0 * m
    ctas, clock_mhz = call["ctas"] if ctx.option("tile") else none, call.get("sm_clock_mhz", none)
    at, net = machine(ctx), NET_OF[ctx.dtype]
    moved, t, named = parts(m, n, k, ctas, ctx.option("tile"), at, xp)
    base = t.base * slowdown(named, clock_mhz, net, ctx, xp) * unaligned(m, n, k, at, ctx, xp)
    base = base + unfused_s(m, k, at, xp) if at.unfused_s or at.unfused_element_s else base
    return Sketch(least(m, n, k, moved, at), base, named, net, work(m, n, k, moved, at))


def parts(
    m: Any, n: Any, k: Any, ctas: Any, tile: tuple[int, ...] | None, at: GemmMachine, xp: Arith
) -> tuple[Traffic, GemmTimes, dict[str, Any]]:
    """Traffic, times and features of one call (floats) or of many (arrays)."""
    moved, tiles = traffic(m, n, k, at, xp), tiling(m, n, k, at, xp)
    if tile is not None:
        tiles = known_tile(tiles, m, n, k, (tile[0], tile[1]), ctas, at, xp)
    t = times(2.0 * m * n * k, moved, tiles, quantize_s(m, k, moved, at, xp), at, xp)
    return moved, t, features(m, n, k, moved, tiles, t, at, xp)


def least(m: Any, n: Any, k: Any, moved: Traffic, at: GemmMachine) -> dict[str, Any]:
    """The least any GEMM must do: useful FLOP, each operand once, a launch for each kernel."""
    launches = 1.0 + (at.library.quantize_kernels if at.quantize_s else 0.0)
    return {"tensor": 2.0 * m * n * k, "dram": moved.least_dram, "l2": moved.all, "launch": launches}


def work(m: Any, n: Any, k: Any, moved: Traffic, at: GemmMachine) -> Work:
    """What a GEMM does: x, W and y pass the L2 once; where it quantises x, that is written and read again."""
    again = 2.0 * at.operand_bytes * m * k if at.quantize_s else 0.0
    return Work(2.0 * m * n * k, moved.dram, moved.all + again)


def faces() -> Faces:
    """What other rooms need to know."""
    from pipewave.kernels.gemm.faces import FACES

    return FACES


FAMILY = Family(
    "gemm",
    Gemm,
    analyse,
    options=("quantize", "tile"),
    variant=net_of,
    nets=tuple(dict.fromkeys(NET_OF.values())),
    formula=formula,
    example="pipewave predict gemm 4096 4096 4096 --gpu H200,L40S",
    faces=faces,
    reads="operands",
    grows={
        "m": Grows(6, least=2),  # one row: vLLM's FP8 products of one take up to twice as long as those of two to 16
        "n": Grows(3, step=64),
        "k": Grows(3, step=64),
    },
    extra=dict.fromkeys(("fp8", "fp8_block", "int8", "nvfp4"), "quantize"),
)

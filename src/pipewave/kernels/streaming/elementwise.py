"""Kernels that only stream memory, by bytes that the caller names: RoPE, embedding rows, KV-cache writes, and the
choice of tokens among logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.kernels.base import Columns, Context, Sketch
from pipewave.kernels.streaming.stream import GENERATED, Stream, describe, generated_s, least_bytes, sketch, times
from pipewave.physics.arith import ARRAY, Arith, clipped, log2
from pipewave.physics.cache import COLD, SERVING

# Kernels that look at logits to choose tokens: softmax, random draws, masks of top-k and top-p, sorts.
#
# A block of threads takes a row, or a tile of one, and looks at it in chunks of 1,024 values, one after the other (the
# field `rounds` of a call). With few requests that is all the time there is; with many, blocks wait for an SM; logits
# that the L2 no longer holds come from DRAM, more slowly and more than once:
#
#     blocks = values / (1024 · rounds),  miss = max(0, 1 − 0.4 · L2 / bytes)
#     time = start + max( max(1, ⌈blocks / SMs⌉ / resident) · rounds · (cycles + more_cycles · miss) / clock,
#                         passes · bytes · miss / DRAM bandwidth )
#
# Operators that run many kernels over all SMs (PyTorch's top-k and sort) have the work of an SM in the place of rounds.
# Constants: of the least mean absolute log error over 48 sizes of each on an H100 (1 to 256 requests,
# vocabularies of 32,000 to 262,144); `studies/results/sampling_fit.json` says how far vocabularies left out are off.

CHUNK = 1024  # values
HELD = 0.4  # of the L2: logits and what they are made of
VALUE_BYTES, INDEX_BYTES = 4, 8  # logits are compared as float32, places are int64

# The greatest of each row, as PyTorch's reduction kernel finds it: few threads look at many values one by one.
#
# A block of 512 threads takes a row. Where a thread would look at 256 values or more, several blocks share the row and
# exchange what they found through memory (`setReduceConfig` in ATen's Reduce.cuh: grids of all traced calls are this
# rule's). So a row of 128,256 logits takes longer than one of 151,936. However many blocks it holds, an SM looks at
# no more than so many values in a clock. The constants are fitted to 48 sizes on an H100 and an H200
# (`studies/results/sampling_fit.json`).

ARGMAX = "argmax"
THREADS, SHARED_FROM, LEAST, MOST = 512, 256.0, 16.0, 256.0  # threads of a block; values a thread looks at
BLOCKS_PER_SM = 4
START_S, SHARED_START_S = 3.109e-06, 2.489e-06
CYCLES_A_VALUE, MISSED_CYCLES, DRAM_SHARE = 176.0, 223.5, 0.6288
VALUES_A_CLOCK = 2.481  # of an SM


def blocks_of_a_row(rows: Any, values: Any, sms: int, xp: Arith = ARRAY) -> Any:
    """Blocks that share a row of so many values."""
    alone = values / THREADS
    wanted = xp.minimum(xp.ceil(BLOCKS_PER_SM * sms / rows), xp.ceil(alone / LEAST))
    return xp.where(alone < SHARED_FROM, 1.0, xp.maximum(wanted, xp.ceil(alone / MOST)))


def argmax_seconds(read: Any, written: Any, gpu: GPU, xp: Arith = ARRAY) -> Any:
    """Time of a call that reads float32 rows and writes a place of each, bytes as given."""
    rows = xp.maximum(xp.floor(written / INDEX_BYTES), 1.0)
    values = read / VALUE_BYTES / rows
    shared = blocks_of_a_row(rows, values, gpu.sms, xp)
    waves = xp.ceil(rows * shared / (BLOCKS_PER_SM * gpu.sms))
    missing = xp.maximum(0.0, 1.0 - HELD * 1e6 * gpu.l2_mb / xp.maximum(read, 1.0))
    cycles = CYCLES_A_VALUE + MISSED_CYCLES * missing
    looking = waves * values / (THREADS * shared) * cycles / (1e6 * gpu.sustained_clock_mhz)
    start = START_S + xp.where(shared > 1, SHARED_START_S, 0.0)
    issued = rows * values / (VALUES_A_CLOCK * 1e6 * gpu.sustained_clock_mhz * gpu.sms)
    return start + xp.maximum(xp.maximum(looking, issued), read / (DRAM_SHARE * 1e9 * gpu.dram_gbps))


@dataclass(frozen=True, slots=True)
class Law:
    """`start_us`; `cycles` of a chunk from L2 and `more_cycles` from DRAM; `passes` over DRAM; blocks that an SM holds
    at full speed. `spread`: many kernels over all SMs. `error_percent`: mean over vocabularies left out of the fit.
    """

    start_us: float
    cycles: float
    more_cycles: float
    passes: float
    resident: float
    error_percent: float
    spread: bool = False


LAWS = {op: Law(**row) for op, row in packaged.document(Path(__file__).with_name("sampling.json")).items()}


def rounds_of(values: int, tile: int = 0) -> int:
    """Chunks that a block looks at: of a row of so many values, or of a tile of it."""
    return max(1, -(-min(values, tile or values) // CHUNK))


def seconds(op: str, read: Any, rounds: Any, gpu: GPU, xp: Arith = ARRAY) -> Any:
    """Time of calls that read float32 logits, bytes as given."""
    law = LAWS[op]
    values = read / VALUE_BYTES
    each = values / gpu.sms / CHUNK if law.spread else xp.maximum(rounds, 1.0)
    blocks = values / (CHUNK * xp.maximum(rounds, 1.0))
    turns = 1.0 if law.spread else xp.maximum(xp.ceil(blocks / gpu.sms) / law.resident, 1.0)
    missing = xp.maximum(0.0, 1.0 - HELD * 1e6 * gpu.l2_mb / xp.maximum(read, 1.0))
    looking = turns * each * (law.cycles + law.more_cycles * missing) / (1e6 * gpu.sustained_clock_mhz)
    moving = law.passes * read * missing / (1e9 * gpu.dram_gbps)
    return 1e-6 * law.start_us + xp.maximum(looking, moving)


# Products in 32-bit floats, on the FMA units: routers of experts that vLLM keeps in this type (`float_routers`).
#
# Tensor cores multiply 32-bit floats only as TF32, which PyTorch does not allow unless asked
# (`torch.get_float32_matmul_precision() == "highest"`). A call names the bytes of its operands and of its result, all
# float32, from which the multiplications follow: with m·k, k·n and m·n values their product is (m·k·n)².
#
#     time = start + max(2·m·k·n / (share · FMA peak), bytes moved)
#
# The share is that of cuBLAS's SIMT kernels with enough rows. Two models on an H100 that no constant is fitted on
# bear it out: prompts of 8,192 tokens of GLM-4.5-Air and MiniMax-M2.5 were 1.7 to 6.4 % low without it (`python -m
# studies.kinds`).

FLOAT_PRODUCT = "float_product"
FMA_SHARE = 0.8  # of the peak at the sustained clock


def operations(work: Stream, xp: Arith = ARRAY) -> Any:
    """Multiplications and additions of m × k by k × n, from the bytes of both and of their product."""
    return 2.0 * xp.sqrt(work.read * work.fresh * work.written / VALUE_BYTES**3)


IN_PLACE = ("rope",)
KNOWN = ("quantize", "rope", "kv_write")  # operations with measured rows
OWN_LAW = (*KNOWN, FLOAT_PRODUCT, ARGMAX, *LAWS)  # all others count as plain copies
# A pick of a top-k: the greatest value of each thread, then of the threads of a row, which exchange theirs in steps.
# Fitted to the router of two traced decode steps (H200, 8 of 128 experts, 4.4 us); two prompts are then 12 % low.
ROUND_CYCLES = 580.0
LEAST_SHARE, NEUTRAL = -11.0, 2.0**-6  # log2; of operations whose rows are not known


def same(options: tuple[str]) -> tuple[str]:
    """An operation whose law is its own, or plain copies: they are answered alike whatever they are called."""
    return options if options[0] in OWN_LAW else ("copy",)


def formula(call: Columns, ctx: Context, xp: Arith) -> Sketch:
    """`weight_bytes` come from DRAM in serving, the other bytes were just written by the kernel before."""
    op, gpu = ctx.option("op", "elementwise"), ctx.gpu
    read, written = call["bytes_read"], xp.maximum(call["bytes_written"], 1.0)
    rounds = call.get("rounds", 0.0 * read)
    work = Stream(call["weight_bytes"], read, written, in_place=op in IN_PLACE)
    least = {"dram": least_bytes(gpu, ctx.protocol, work, xp), "l2": work.moved, "launch": 1.0}
    if op == ARGMAX:
        return sketch(least, argmax_seconds(read, written, gpu, xp), ctx, work, xp)
    if op == FLOAT_PRODUCT:
        flops, moving = operations(work, xp), times(ctx, work, xp)
        fma = 2.0 * gpu.fma_per_clk_per_sm * gpu.sms * 1e6 * gpu.sustained_clock_mhz
        busy = xp.maximum(flops / (FMA_SHARE * fma), xp.maximum(moving.dram, moving.through))
        return sketch(least | {"fma": flops}, moving.start + busy, ctx, work, xp)
    if op in LAWS:
        return sketch(least, seconds(op, read, rounds, gpu, xp), ctx, work, xp)
    if ctx.impl == GENERATED:
        return sketch(least, generated_s(ctx, work, xp), ctx, work, xp)
    # Slots of a paged cache are scattered and long untouched, so writing them takes what it takes after a flush.
    ctx = replace(ctx, protocol=COLD) if op == "kv_write" and ctx.protocol == SERVING else ctx
    moving = times(ctx, work, xp)
    # How short rows are: the share of tables (rope) or slots (kv_write), which come once a row.
    slots = xp.maximum(read, written) - xp.minimum(read, written)
    once = {"rope": work.fresh, "kv_write": slots}.get(op, NEUTRAL * work.moved)
    short = clipped(log2(once / work.moved, xp), LEAST_SHARE, -2.0, xp)
    features = describe(ctx, work, moving, xp) | {"row_share": short}
    features |= {name: float(op == name) for name in KNOWN}
    picks = rounds * ROUND_CYCLES / (gpu.sustained_clock_mhz * 1e6)
    return sketch(least, moving.base + picks, ctx, work, xp, "elementwise", **features)

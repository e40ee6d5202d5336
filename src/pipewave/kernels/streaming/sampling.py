"""Kernels that look at logits to choose tokens: softmax, random draws, masks of top-k and top-p, sorts.

A block of threads takes a row, or a tile of one, and looks at it in chunks of 1,024 values, one after the other (the
field `rounds` of a call). With few requests that is all the time there is; with many, blocks wait for an SM; logits
that the L2 no longer holds come from DRAM, more slowly and more than once:

    blocks = values / (1024 · rounds),  miss = max(0, 1 − 0.4 · L2 / bytes)
    time = start + max( max(1, ⌈blocks / SMs⌉ / resident) · rounds · (cycles + more_cycles · miss) / clock,
                        passes · bytes · miss / DRAM bandwidth )

Operators that run many kernels over all SMs (PyTorch's top-k and sort) have the work of an SM in the place of rounds.
Constants: of the least mean absolute log error over 48 sizes of each on an H100 (1 to 256 requests,
vocabularies of 32,000 to 262,144); `studies/results/sampling_fit.json` says how far vocabularies left out are off.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.cache import MISSES, l2_bytes, missing_share

CHUNK = 1024  # values
HELD = 0.4e6 / 2**20  # of the L2, fitted as 0.4 million bytes a MiB: logits and what they are made of
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
    missing = missing_share(MISSES["least"], HELD * l2_bytes(gpu), read, xp)
    cycles = CYCLES_A_VALUE + MISSED_CYCLES * missing
    looking = waves * values / (THREADS * shared) * cycles / (1e6 * gpu.sustained_clock_mhz)
    start = START_S + xp.where(shared > 1, SHARED_START_S, 0.0)
    issued = rows * values / (VALUES_A_CLOCK * 1e6 * gpu.sustained_clock_mhz * gpu.sms)
    return start + xp.maximum(xp.maximum(looking, issued), read / (DRAM_SHARE * 1e9 * gpu.dram_gbps))


@dataclass(frozen=True, slots=True)
class Law:
    """A kernel over rows of logits."""

    start_us: float
    cycles: float  # of a chunk from L2
    more_cycles: float  # from DRAM
    passes: float  # over DRAM
    resident: float  # blocks that an SM holds at full speed
    error_percent: float  # mean over vocabularies left out of the fit
    spread: bool = False  # many kernels over all SMs


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
    missing = missing_share(MISSES["least"], HELD * l2_bytes(gpu), read, xp)
    looking = turns * each * (law.cycles + law.more_cycles * missing) / (1e6 * gpu.sustained_clock_mhz)
    moving = law.passes * read * missing / (1e9 * gpu.dram_gbps)
    return 1e-6 * law.start_us + xp.maximum(looking, moving)

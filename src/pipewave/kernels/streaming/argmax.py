"""The greatest of each row, as PyTorch's reduction kernel finds it: few threads look at many values one by one.

A block of 512 threads takes a row. Where a thread would look at 256 values or more, several blocks share the row and
exchange what they found through memory (`setReduceConfig` in ATen's Reduce.cuh: grids of all traced calls are this
rule's). So a row of 128,256 logits takes longer than one of 151,936. However many blocks it holds, an SM looks at
no more than so many values in a clock. The constants are fitted to 48 sizes on an H100 and an H200
(`python -m bench.sampling_fit`).
"""

from __future__ import annotations

import numpy as np

from pipewave.gpus import GPU
from pipewave.physics.demand import Array

OP = "argmax"
THREADS, SHARED_FROM, LEAST, MOST = 512, 256.0, 16.0, 256.0  # threads of a block; values a thread looks at
BLOCKS_PER_SM = 4
START_S, SHARED_START_S = 3.109e-06, 2.489e-06
CYCLES_A_VALUE, MISSED_CYCLES, DRAM_SHARE = 176.0, 223.5, 0.6288
VALUES_A_CLOCK = 2.481  # of an SM
HELD = 0.4  # of the L2
VALUE_BYTES, INDEX_BYTES = 4, 8  # logits are compared as float32, places are int64


def blocks_of_a_row(rows: Array, values: Array, sms: int) -> Array:
    """Blocks that share a row of so many values."""
    alone = values / THREADS
    wanted = np.minimum(np.ceil(BLOCKS_PER_SM * sms / rows), np.ceil(alone / LEAST))
    return np.where(alone < SHARED_FROM, 1.0, np.maximum(wanted, np.ceil(alone / MOST)))


def seconds(read: Array, written: Array, gpu: GPU) -> Array:
    """Time of a call that reads float32 rows and writes a place of each, bytes as given."""
    rows = np.maximum(np.floor(written / INDEX_BYTES), 1.0)
    values = read / VALUE_BYTES / rows
    shared = blocks_of_a_row(rows, values, gpu.sms)
    waves = np.ceil(rows * shared / (BLOCKS_PER_SM * gpu.sms))
    missing = np.maximum(0.0, 1.0 - HELD * 1e6 * gpu.l2_mb / np.maximum(read, 1.0))
    cycles = CYCLES_A_VALUE + MISSED_CYCLES * missing
    looking = waves * values / (THREADS * shared) * cycles / (1e6 * gpu.sustained_clock_mhz)
    start = START_S + np.where(shared > 1, SHARED_START_S, 0.0)
    issued = rows * values / (VALUES_A_CLOCK * 1e6 * gpu.sustained_clock_mhz * gpu.sms)
    return np.asarray(start + np.maximum(np.maximum(looking, issued), read / (DRAM_SHARE * 1e9 * gpu.dram_gbps)))

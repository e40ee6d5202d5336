"""The greatest of each row, as PyTorch's reduction kernel finds it: few threads look at many values one by one.

A block of 512 threads takes a row. Where a thread would look at 256 values or more, several blocks share the row and
exchange what they found through memory (`setReduceConfig` in ATen's Reduce.cuh: grids of all traced calls are this
rule's). So a row of 128,256 logits takes longer than one of 151,936. The three constants are fitted to four traced
calls (H200, 1 and 32 rows of both); those of four other traces of the H200 are predicted within 9 %.
"""

from __future__ import annotations

import numpy as np

from pipewave.gpus import GPU
from pipewave.physics.demand import Array

OP = "argmax"
THREADS, SHARED_FROM, LEAST, MOST = 512, 256.0, 16.0, 256.0  # threads of a block; values a thread looks at
BLOCKS_PER_SM = 4
START_S, CYCLES_A_VALUE, DRAM_SHARE = 6.6e-6, 162.0, 0.42
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
    looking = waves * values / (THREADS * shared) * CYCLES_A_VALUE / (1e6 * gpu.sustained_clock_mhz)
    return np.asarray(START_S + np.maximum(looking, read / (DRAM_SHARE * 1e9 * gpu.dram_gbps)))

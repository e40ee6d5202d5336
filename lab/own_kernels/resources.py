"""What a configuration asks of one SM, known before anything is compiled.

Checked against the compiler's own report for sm_90 binaries (Triton 3.6): shared memory is exact where the operands
go through wgmma (block rows ≥ 64 a warp group) and an upper bound elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

SMEM_PER_BLOCK = 232_448  # bytes, compute capability 9.0 (227 KiB)
ACCUMULATOR_SHARE = 128  # accumulators a GEMM thread can hold beside addresses and operands without spilling


@dataclass(frozen=True, slots=True)
class Resources:
    """Per thread block: `smem_bytes`, and `accumulators`, the 32-bit registers a thread holds over the main loop."""

    smem_bytes: int
    accumulators: int
    accumulator_limit: int = ACCUMULATOR_SHARE

    def problem(self, smem_limit: int = SMEM_PER_BLOCK) -> str | None:
        """Say why such a block cannot run well, or None if it can."""
        if self.smem_bytes > smem_limit:
            return f"needs {self.smem_bytes} bytes of shared memory, the limit is {smem_limit}"
        if self.accumulators > self.accumulator_limit:
            return f"holds {self.accumulators} accumulators a thread, more than {self.accumulator_limit} spill"
        if self.accumulators < 2:
            return "has more threads than work"
        return None


def matmul(config: dict[str, int], operand_bytes: int) -> Resources:
    """Tile product with both operands staged `num_stages` deep."""
    m, n, k, warps = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"], config["num_warps"]
    # mma.sync (fewer than 64 rows) keeps one stage in registers; wgmma reads every stage from shared memory.
    stages = config["num_stages"] - (m < 64 and config["num_stages"] > 1)
    return Resources(stages * (m + n) * k * operand_bytes, m * n // (32 * warps))


def attention(config: dict[str, int], head_dim: int) -> Resources:
    """FlashAttention tile: queries stay, keys and values are staged; scores and output live in registers."""
    m, n, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    stages = config["num_stages"]
    smem = (m + 2 * n * stages) * head_dim * 2 if stages > 1 else max(m + n, n) * head_dim * 2
    # Output and scores both accumulate, but the scores' registers are free again before the next operands load.
    return Resources(smem, m * (head_dim + n) // (32 * warps), accumulator_limit=192)


def paged(config: dict[str, int], head_dim: int, rows: int = 16) -> Resources:
    """Decode tile: one query group, keys and values staged."""
    n, warps, stages = config["BLOCK_N"], config["num_warps"], config["num_stages"]
    return Resources(2 * max(stages - 1, 1) * n * head_dim * 2, rows * (head_dim + n) // (32 * warps))

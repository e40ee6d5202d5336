"""What a board draws while a kernel runs, joules of its work, and how long a board at its power limit takes to deliver.

    watts = min(limit, idle + active + joules of the work / its seconds)

`idle` is the clocked board with nothing to do (gaps of a step), `active` what busy SMs draw whatever they do. Joules of
the work are counted from its FLOPs and bytes. All of it scales with the datasheet: the tensor cores of a board at their
peak, or its memory at full bandwidth, take the same share of its power whatever the part; so constants are shares, fitted
to steady rows (`python -m train power`, `power.json`), and carry over to parts that nobody measured.

Energy adds up over a step: kernels that idle the tensor cores pay for those that do not. A board whose kernels need more
than its limit lowers its clock until they do not: an H200 multiplies bf16 at 778 TFLOP/s for a few calls and at 660 for
good (`data/measured/h200`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipewave.errors import UnknownGPU
from pipewave.files import packaged
from pipewave.gpus import GPU, find
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.overlap import overlapped

LAW = Path(__file__).with_name("power.json")
SHARPNESS = 20  # of the bend from the sum of kernels to the power limit
START_S = 2e-6  # of a kernel, in which SMs wait for it to begin and to retire
GRAPH = "graph"  # the protocol whose rows were measured on a collection's own operands
# Power goes with clock and voltage squared, and voltage about with the clock above its lowest: between 2 and 3.
CLOCK_EXPONENT = 2.4
LEAST_ROOM = 1.25  # times idle: no lower limit can be held
MOST_OVER = 1.03  # times the limit: what a second's mean was seen to reach


class Work(NamedTuple):
    """What the implementation of calls really does, per call; a `Demand` holds the least that any must do.

    `flops`: on the tensor cores, two per multiply-add, without the padding of tiles. `dram`: bytes exchanged with DRAM.
    `l2`: bytes between L2 and SMs, each operand of each kernel once: what tiles read again is counted with the energy
    of a FLOP. `product`: type of the products where it is not that of the call.
    """

    flops: Any
    dram: Any
    l2: Any
    product: str = ""

    def laid_out(self, calls: int) -> Work:
        """As arrays over `calls`, from amounts some of which may be numbers that hold for all."""
        amounts = np.empty((3, calls))
        amounts[0], amounts[1], amounts[2] = self.flops, self.dram, self.l2
        return Work(amounts[0], amounts[1], amounts[2], self.product)


class Spent(NamedTuple):
    """Watts of a call that runs back to back, the ends of their 90 % interval, and joules of one such call."""

    power_w: Any
    power_low_w: Any
    power_high_w: Any
    energy_j: Any


@dataclass(frozen=True, slots=True)
class Board:
    """Watts of a board: clocked with nothing to do, clocks down, what its regulator holds at most, and what it can
    deliver to work above idle while held: under a lower limit than its own, work takes fewer joules at lower clocks.
    """

    idle_w: float
    asleep_w: float
    limit_w: float
    delivers_w: float

    def held_s(self, joules: Any, seconds: Any, xp: Arith = ARRAY) -> Any:
        """Seconds that work of so many joules takes for good where a burst of it takes `seconds`."""
        return xp.maximum(seconds, joules / self.delivers_w)

    def watts(self, joules: Any, seconds: Any, xp: Arith = ARRAY) -> Any:
        """Mean of a board that spends `joules` above idle every so many seconds, again and again."""
        return xp.minimum(self.idle_w + joules / seconds, self.limit_w)

    def heat_us(self, joules: Any) -> Any:
        """µs that the board needs at its limit to deliver so many joules above idle."""
        return 1e6 * joules / self.delivers_w


@dataclass(frozen=True, slots=True)
class Draw:
    """What calls of one kind draw on one board above its idle watts. `spread`: half the 90 % interval of the logarithm
    of a call's watts.
    """

    board: Board
    active_w: float
    per_flop_j: float
    per_dram_byte_j: float
    per_l2_byte_j: float
    spread: float

    def work_j(self, work: Work) -> Any:
        """Joules of FLOPs and bytes."""
        return self.per_flop_j * work.flops + self.per_dram_byte_j * work.dram + self.per_l2_byte_j * work.l2

    def joules(self, work_j: Any, seconds: Any, xp: Arith = ARRAY) -> Any:
        """Joules above idle of calls that take so long."""
        return self.active_w * xp.maximum(seconds - START_S, 0.0) + work_j

    def spent(self, joules: Any, seconds: Any, xp: Arith = ARRAY) -> Spent:
        """What a call draws that takes `seconds` alone and so many joules above idle, again and again."""
        board, held_s = self.board, self.board.held_s(joules, seconds, xp)
        watts, factor = board.watts(joules, held_s, xp), exp(self.spread)
        high = xp.minimum(watts * factor, MOST_OVER * board.limit_w)
        return Spent(watts, xp.maximum(watts / factor, board.asleep_w), high, watts * held_s)


@lru_cache(maxsize=1024)
def board_of(gpu: GPU) -> Board:
    """The board of a GPU under its power limit, which a what-if may have changed."""
    made, boards = _as_made(gpu), _law()["boards"]
    share = boards.get(made.base_gpu) or boards["other"]
    idle_w, own_w, limit_w = (each * made.tdp_w for each in (share["idle"], share["limit"], share["limit"]))
    limit_w = max(share["limit"] * gpu.tdp_w, LEAST_ROOM * idle_w)
    lowered = ((limit_w - idle_w) / (own_w - idle_w)) ** (1.0 / CLOCK_EXPONENT)
    return Board(idle_w, share["asleep"] * made.tdp_w, limit_w, (own_w - idle_w) * lowered)


@lru_cache(maxsize=4096)
def draw_of(gpu: GPU, kind: str, dtype: str, stack: str = "", protocol: str = "") -> Draw:
    """What calls of a kind (the net that answers for them) and a type of product draw under some software and protocol."""
    law, made = _law(), _as_made(gpu)
    like = law["like"].get(kind, kind)
    row = law["kinds"].get(like) or law["kinds"][law["like"]["other"]]
    known, generation = law["boards"], str(made.compute_capability // 10)
    factor = row["generations"].get(generation, 1.0)
    factor *= row["collected"].get(f"{stack.partition('-')[0]} {dtype}", 1.0) if protocol == GRAPH else 1.0
    full_w, spread = factor * made.tdp_w, row["spread"]
    basis = 0 if made.base_gpu in known else 1 if generation in law["generations"] else 2
    return Draw(
        board=board_of(gpu),
        active_w=row["active"] * full_w,
        per_flop_j=row["tensor"] * full_w / made.peak_flops(dtype),
        per_dram_byte_j=row["dram"] * full_w / (1e9 * made.dram_gbps),
        per_l2_byte_j=row["l2"] * full_w / (1e9 * made.l2_gbps),
        spread=spread[basis],
    )


def limited_us(kernel_us: Any, heat_us: Any, xp: Arith = ARRAY) -> Any:
    """Time of kernels that take `kernel_us` at burst clocks when their energy takes `heat_us` to deliver."""
    return overlapped(SHARPNESS, kernel_us, heat_us, xp=xp)


@lru_cache(maxsize=256)
def _as_made(gpu: GPU) -> GPU:
    """The part that a what-if changes: its joules do not change with its limit or its rates."""
    try:
        return find(gpu.origin) if gpu.origin else gpu
    except UnknownGPU:
        return gpu


@cache
def _law() -> dict[str, Any]:
    law: dict[str, Any] = packaged.document(LAW)
    return law

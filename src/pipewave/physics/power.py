"""What a board draws while a kernel runs again and again, and how its limit slows what would draw more.

    watts = min(limit, idle + active + joules of the work / seconds)

`idle` is the clocked board with nothing to do (gaps of a step), `active` what busy SMs draw whatever they do. Joules of
the work are counted from its FLOPs and bytes. All of it scales with the datasheet: the tensor cores of a board at their
peak take the same share of its power whatever the part, and a byte of DRAM the same joules whatever the board, as long
as memories are of one generation. So constants are shares, fitted to steady rows (`python -m train power` writes
`power.json`), and carry over to parts that nobody measured.

Kernels measured one by one after a flush run at burst clocks; back to back, the board lowers the clock: an H200
multiplies bf16 at 778 TFLOP/s for a few calls and at 660 for good (`data/measured/h200/microbench.json`). Joules add up
over a step, so kernels that idle the tensor cores pay for those that do not (`limited_us`). What the meter of a public
collection reads besides is `collected.py`, for the protocol `graph` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.dtypes import OPERAND_BYTES
from pipewave.errors import BadInput, UnknownGPU
from pipewave.files import packaged
from pipewave.gpus import GPU, find
from pipewave.physics.arith import ARRAY, RECORDED, Arith, straight
from pipewave.physics.collected import Reading, reading_of, start_share
from pipewave.physics.overlap import overlapped

LAW = Path(__file__).with_name("power.json")
START_S = 2e-6  # of a kernel, in which SMs wait for it to begin and to retire
GRAPH = "graph"  # the protocol whose times are of loops that last: the board is at its limit already
LEAST_ROOM = 1.25  # times idle: no lower limit can be held
MOST_OVER = 1.03  # times the limit: what a second's mean was seen to reach
MEASURED, KINDRED, EXTRAPOLATED = POWER_BASES = "measured_gpu", "same_architecture", "extrapolated"
SHARPNESS = 20  # of the bend from the sum of kernels to the power limit
# Time goes with this root of the power that work would draw over what the board has (`python -m qa.energy limit`).
LIMIT_EXPONENT = 3.5
LEAST_LIMIT = 0.25  # of a board's own power limit: no clock is low enough to hold less
# Of a product alone, over before the board has averaged its power: joules of a 16-bit dense FLOP by tensor instruction,
# of a byte of DRAM, and the share of idle watts. A robust fit of rows of five architectures (`studies.gemm_base`).
PRODUCT_FLOP_J: Mapping[str, float] = {"mma": 1.25e-12, "wgmma": 0.68e-12, "tcgen05": 0.43e-12}
PRODUCT_BYTE_J, PRODUCT_IDLE = 6e-12, 0.2


class Work(NamedTuple):
    """What the implementation of calls really does, per call; a `Demand` holds the least that any must do."""

    flops: Any  # on the tensor cores, two per multiply-add, without the padding of tiles
    dram: Any  # bytes exchanged with DRAM
    l2: Any  # bytes to and from SMs, each operand once: what tiles read again is counted with FLOPs
    product: str = ""  # type of the products where it is not that of the call

    def laid_out(self, calls: int) -> Work:
        """As arrays over `calls`, from amounts some of which may be numbers that hold for all."""
        amounts = np.empty((3, calls))
        amounts[0], amounts[1], amounts[2] = self.flops, self.dram, self.l2
        return Work(amounts[0], amounts[1], amounts[2], self.product)


@lru_cache(maxsize=256)
def joules_per_flop(gpu: GPU, dtype: str, wide_j: float | None = None) -> float:
    """Joules of one dense FLOP of a type: power of the tensor cores is the same at the peak of each.

    `wide_j`: of a 16-bit FLOP; that of the architecture where none is given.
    """
    wide = gpu.peak_flops("bf16" if gpu.supports("bf16") else "fp16")
    return (wide_j or gpu.traits.joules_per_flop) * wide / gpu.peak_flops(dtype)


@lru_cache(maxsize=1024)
def product_w(gpu: GPU) -> float:
    """Watts that the board has for a product alone; under another limit as many as its clocks fall."""
    own = as_made(gpu).tdp_w
    left = max(gpu.tdp_w / own, LEAST_LIMIT) - PRODUCT_IDLE
    return float((left / (1.0 - PRODUCT_IDLE)) ** (1.0 / LIMIT_EXPONENT) * (1.0 - PRODUCT_IDLE) * own)


@lru_cache(maxsize=256)
def as_made(gpu: GPU) -> GPU:
    """The part that a what-if changes."""
    try:
        return find(gpu.origin) if gpu.origin else gpu
    except UnknownGPU:
        return gpu


def limited(gpu: GPU, power_limit_w: float | None) -> GPU:
    """The GPU under another power limit, as `nvidia-smi -pl` sets it. Raises BadInput for one that no board holds."""
    if power_limit_w is None:
        return gpu
    least, most = LEAST_LIMIT * gpu.tdp_w, gpu.tdp_w
    if not (isinstance(power_limit_w, (int, float)) and least <= power_limit_w <= most):
        must = f"power_limit_w = {power_limit_w!r}: must be from {least:g} to {most:g} W on a {gpu.name}"
        raise BadInput(must, field="power_limit_w")
    return gpu.what_if(tdp_w=power_limit_w)


def limited_us(kernel_us: Any, at_limit_us: Any, xp: Arith = ARRAY, slack_us: Any = 0.0) -> Any:
    """Time of kernels that take `kernel_us` at burst clocks, and whose joules take `at_limit_us` at the power limit, of
    which the board draws `slack_us` beyond it.
    """
    over = overlapped(SHARPNESS, 1.0, at_limit_us / xp.maximum(kernel_us + slack_us, 1e-9), xp=xp)
    return kernel_us * over ** (1.0 / LIMIT_EXPONENT)


class Spent(NamedTuple):
    """Watts of a call that runs back to back, the ends of their 90 % interval, and joules of one such call."""

    power_w: Any
    power_low_w: Any
    power_high_w: Any
    energy_j: Any


@dataclass(frozen=True, slots=True)
class Board:
    """Watts of a board: clocked with nothing to do, clocks down, and the most that its regulator lets it draw."""

    idle_w: float
    asleep_w: float
    limit_w: float
    basis: str  # whether rows of this GPU (`measured_gpu`), of its architecture or of others stand behind it
    spread: float  # half the 90 % interval of the logarithm of its watts while a server runs
    spinning_w: float  # above idle in a collective that waits for another board

    def at_limit_us(self, above_idle_j: Any) -> Any:
        """µs in which the board delivers so many joules above idle at its power limit."""
        return above_idle_j * (1e6 / (self.limit_w - self.idle_w))

    def step_w(self, above_idle_j: Any, spins_s: Any, seconds: Any, stages: int = 1) -> Any:
        """Mean watts of a board in a step whose kernels take so many joules above idle, gaps at idle; of one of so many
        boards that take turns at it. `spins_s`: in which a tensor or expert group waits for its slowest host, that
        launches kernels one by one or is late, in a collective: board after board reaches the next and spins there.
        """
        joules = above_idle_j + self.spinning_w * spins_s
        at_work = np.minimum(self.idle_w + joules / np.maximum(seconds, 1e-12), self.limit_w)
        return (at_work + (stages - 1) * self.idle_w) / stages

    def ends(self, watts: Any) -> tuple[Any, Any]:
        """Both ends of the 90 % interval of the mean watts of steps."""
        factor = exp(self.spread)
        return np.maximum(watts / factor, self.asleep_w), np.minimum(watts * factor, MOST_OVER * self.limit_w)


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """What calls of one kind draw on one board above its idle watts."""

    board: Board
    made_w: float  # the board's power as made
    active_w: float
    per_flop_j: float
    per_dram_byte_j: float
    per_l2_byte_j: float
    spread: float  # half the 90 % interval of the logarithm of a call's watts
    sustained: bool  # times of these calls are of loops that last
    in_step: float  # joules of a call bound by DRAM between the other kernels of a step, over those of the call alone
    rates: tuple[float, float, float]  # of FLOPs, DRAM and L2 bytes, a second
    reading: Reading | None  # what a collection's meter reads besides, in shares of `made_w`
    falls: Sequence[Sequence[float]]  # of the share of the law that such a meter reads of prompts, by their tokens
    spent_alone: Callable[[float, float], tuple[float, ...]] = field(init=False)  # `spent` of one call, recorded

    def __post_init__(self) -> None:
        alone = straight(lambda work_j, seconds: self.spent(work_j, seconds, RECORDED), 2)
        object.__setattr__(self, "spent_alone", alone)

    def work_j(self, work: Work, base_s: Any = 0.0, features: Mapping[str, Any] = {}, xp: Arith = ARRAY) -> Any:
        """Joules of FLOPs and bytes, and what a meter reads besides. `base_s`, `features`: the family's."""
        joules = self.per_flop_j * work.flops + self.per_dram_byte_j * work.dram + self.per_l2_byte_j * work.l2
        if self.falls:
            joules = joules - (1.0 - start_share(self.falls, features, xp)) * (joules + self.active_w * base_s)
        if self.reading is None:
            return joules
        shares = [amount / rate / base_s for amount, rate in zip(work[:3], self.rates, strict=True)]
        made_j = self.made_w * base_s
        law = (joules + self.active_w * base_s) / made_j
        return joules + made_j * self.reading.above(law, shares, base_s, features, xp)

    def most_j(self, seconds: Any) -> Any:
        """The most that work of a loop that lasted counts as, where nobody measured what a board draws: its limit."""
        room_w = self.board.limit_w - self.board.idle_w - self.active_w
        return (room_w if self.board.basis == EXTRAPOLATED else np.inf) * seconds

    def above_idle_j(self, work_j: Any, seconds: Any, xp: Arith = ARRAY) -> Any:
        """Joules above what the idle board draws, of calls that take so long."""
        joules = self.active_w * xp.maximum(seconds - START_S, 0.0) + work_j
        return xp.maximum(joules, 0.0) if self.reading or self.falls else joules

    def spent(self, work_j: Any, seconds: Any, xp: Arith = ARRAY) -> Spent:
        """What a call draws that takes `seconds` alone, again and again; longer where the board is at its limit."""
        board, factor = self.board, exp(self.spread)
        joules = self.above_idle_j(work_j, seconds, xp)
        watts = xp.minimum(board.idle_w + joules / seconds, board.limit_w)
        if not self.sustained:  # the clock gives way, and work costs less at a lower one
            over = xp.maximum(joules / (seconds * (board.limit_w - board.idle_w)), 1.0)
            seconds = seconds * over ** (1.0 / LIMIT_EXPONENT)
        low = xp.maximum(watts / factor, board.asleep_w)
        return Spent(watts, low, xp.minimum(watts * factor, MOST_OVER * board.limit_w), watts * seconds)


@lru_cache(maxsize=1024)
def board_of(gpu: GPU) -> Board:
    """The board of a GPU under its power limit, which a what-if may have changed."""
    made, boards = as_made(gpu), packaged.shared(LAW)["boards"]
    share = boards.get(made.base_gpu) or boards["other"]
    idle_w, generation = share["idle"] * made.tdp_w, str(made.compute_capability // 10)
    row = packaged.shared(LAW)["kinds"][packaged.shared(LAW)["like"]["other"]]  # of collectives among others
    known = KINDRED if generation in packaged.shared(LAW)["generations"] else EXTRAPOLATED
    basis = MEASURED if made.base_gpu in boards else known
    return Board(
        idle_w=idle_w,
        asleep_w=share["asleep"] * made.tdp_w,
        limit_w=max(share["limit"] * gpu.tdp_w, LEAST_ROOM * idle_w),
        basis=basis,
        spread=packaged.shared(LAW)["steps"]["spread"][POWER_BASES.index(basis)],
        spinning_w=row["active"] * row["generations"].get(generation, 1.0) * made.tdp_w,
    )


def dram_byte_j(made: GPU) -> float:
    """Joules a byte of DRAM that a share of one stands for: of the generation's measured board, or its own."""
    like = packaged.shared(LAW)["memory"].get(str(made.compute_capability // 10))
    board = as_made(find(like)) if like else made
    return board.tdp_w / (1e9 * board.dram_gbps)


def flop_j(made: GPU, dtype: str) -> float:
    """Joules of a FLOP that a share of one stands for, of a board as made. One that nobody measured takes those of a
    measured board by what architectures take, but no more than its own power at its peak: it may run at low clocks.
    """
    law, most = packaged.shared(LAW), made.tdp_w / made.peak_flops(dtype)
    if made.base_gpu in law["boards"]:
        return most
    like = find(law["flops"].get(str(made.compute_capability // 10), law["flops"]["other"]))
    share = joules_per_flop(made, dtype) / joules_per_flop(like, "bf16")
    return min(most, like.tdp_w / like.peak_flops("bf16") * share)


@lru_cache(maxsize=4096)
def draw_of(
    gpu: GPU, kind: str, dtype: str, stack: str = "", protocol: str = "", impl: str = "", stored: str = ""
) -> Draw:
    """What calls of a kind (the net that answers for them) draw, by type of their products, software and protocol.

    `stored`: the type of weights that are unpacked for the products, and move through an SM as wide as those are.
    """
    law, made = packaged.shared(LAW), as_made(gpu)
    like, generation = law["like"].get(kind, kind), str(made.compute_capability // 10)
    row = law["kinds"].get(like) or law["kinds"][law["like"]["other"]]
    row = law["kinds"].get(f"{like}_collected", row) if protocol == GRAPH else row
    factor = row["generations"].get(generation, 1.0)
    framework, reading = stack.partition("-")[0], None
    if protocol == GRAPH:
        factor *= row["collected"].get(f"{framework} {dtype}", 1.0)
        reading = reading_of(kind, f"{generation} {framework} {impl} {dtype}")
    full_w, wider = factor * made.tdp_w, OPERAND_BYTES.get(dtype, 2.0) / OPERAND_BYTES.get(stored or dtype, 2.0)
    board, rates = board_of(gpu), (gpu.peak_flops(dtype), 1e9 * gpu.dram_gbps, 1e9 * gpu.l2_gbps)
    return Draw(
        board=board,
        made_w=made.tdp_w,
        active_w=row["active"] * full_w,
        per_flop_j=row["tensor"] * factor * flop_j(made, dtype),
        per_dram_byte_j=row["dram"] * factor * dram_byte_j(made),
        per_l2_byte_j=row["l2"] * full_w / rates[2] * max(wider, 1.0),
        spread=reading.spread if reading and board.basis == MEASURED else row["spread"][POWER_BASES.index(board.basis)],
        sustained=protocol == GRAPH,
        in_step=law["steps"]["in_step"].get(like, {}).get(generation, 1.0),
        rates=rates,
        reading=reading,
        falls=row.get("falls", {}).get(framework, ()),
    )

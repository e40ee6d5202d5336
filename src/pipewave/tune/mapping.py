"""Shape and configuration → thread blocks, loop trips, waves and bytes: what a launch is made of.

Written once in plain arithmetic, so that the same lines run on integers at run time and on numpy arrays (shapes down,
configurations across) when a table is fitted. Units: blocks, trips, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import MissingField, UnknownField, did_you_mean
from pipewave.tune.shapes import family, is_up


class Work(NamedTuple):
    """One launch. Each field is a number or an array.

    `blocks`: thread blocks that do work; `trips`: main-loop trips of a block, mean; `longest`: of the longest block;
    `dram`: bytes that must come from or go to memory once; `l2`: bytes the blocks ask of the L2 for their operands;
    `idle`: blocks that start and leave at once, or rows of a second pass.
    """

    blocks: Any
    trips: Any
    longest: Any
    dram: Any
    l2: Any
    idle: Any


Values = Mapping[str, Any]
LINE = 128  # bytes of a cache line
KIND_FIELDS: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "moe": ("m", "e", "top_k", "hidden", "inter"),
    "prefill": ("batch", "q_len", "kv_len", "heads", "kv_heads"),
    "decode": ("batch", "kv_len", "heads", "kv_heads"),
}
LOAD = {"decode": ("longest",)}  # what may be said of a launch beyond its shape


def gemm(shape: Values, c: Values, bytes_each: int) -> Work:
    """Dense GEMM: one block an output tile, one trip a slice of K."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    rows, cols, trips = -(-m // c["BLOCK_M"]), -(-n // c["BLOCK_N"]), -(-k // c["BLOCK_K"])
    dram = (m * k + n * k) * bytes_each + 2 * m * n
    return Work(rows * cols, trips, trips, dram, (rows * n + cols * m) * lines(k * bytes_each, trips), 0)


def lines(row_bytes: Any, trips: Any) -> Any:
    """Bytes of cache lines that a row asks for in `trips` parts: a line more a part where rows start inside a line."""
    return row_bytes + (row_bytes % LINE > 0) * LINE * trips


def active_experts(m: Any, e: Any, top_k: Any) -> Any:
    """Experts that at least one of m tokens chooses, in expectation, every expert being as likely."""
    return e * (1.0 - (1.0 - top_k / (e + 1e-9)) ** m)


def routed(counts: Iterable[int], sizes: Iterable[int]) -> dict[str, Any]:
    """Return the routing fields of a shape from the tokens each expert got, for blocks of some sizes."""
    used = [count for count in counts if count > 0]
    return {"active": len(used), "rows_by": {size: sum(-(-count // size) for count in used) for size in sizes}}


def expert_rows(pairs: Any, active: Any, block_m: Any) -> Any:
    """Blocks of rows that `pairs` rows spread over `active` experts fill: a part-filled block each, half on average."""
    more = pairs / block_m - 0.5 * active
    return active + more * (more > 0)


def moe(shape: Values, c: Values, up: bool) -> Work:
    """Grouped GEMM: every expert's rows padded to whole blocks.

    A shape may bring its routing: `active` experts, and the blocks of rows they fill, as an array (`rows`) or by
    BLOCK_M (`rows_by`). Without, both are expected values.
    """
    m, e, top_k = shape["m"], shape["e"], shape["top_k"]
    n, k = (2 * shape["inter"], shape["hidden"]) if up else (shape["hidden"], shape["inter"])
    pairs, active = m * top_k, shape["active"] if "active" in shape else active_experts(m, e, top_k)
    if "rows_by" in shape:
        rows = shape["rows_by"][c["BLOCK_M"]]
    else:
        rows = shape["rows"] if "rows" in shape else expert_rows(pairs, active, c["BLOCK_M"])
    cols, trips = -(-n // c["BLOCK_N"]), -(-k // c["BLOCK_K"])
    few = pairs + (e - pairs) * (e < pairs)  # min(pairs, e) for numbers and arrays alike
    bound = (pairs + few * (c["BLOCK_M"] - 1)) // c["BLOCK_M"] + 1
    dram = 2 * (active * n * k + m * (k if up else top_k * k) + pairs * n)
    return Work(rows * cols, trips, trips, dram, 2 * (rows * n + cols * pairs) * k, (bound - rows) * cols)


SUMMED = 1024  # values


def layer(shape: Values, c: Values, up: bool) -> Work:
    """A product of the fused layer, routed as in `moe`: gate and up in one tile, or w2 with the sum over experts.

    `idle` of the second counts what the sum moves, by whichever way a configuration takes.
    """
    work = moe(shape, c, up)
    pairs = shape["m"] * shape["top_k"]
    if not up:
        moved = (pairs + shape["m"]) * shape["hidden"] / SUMMED
        return work._replace(dram=work.dram - 2 * pairs * shape["hidden"], idle=moved)
    rows = work.blocks / -(-2 * shape["inter"] // c["BLOCK_N"])
    cols = -(-shape["inter"] // c["BLOCK_N"])
    read = 2 * (rows * 2 * shape["inter"] + cols * pairs) * shape["hidden"]
    return work._replace(blocks=rows * cols, dram=work.dram - 2 * pairs * shape["inter"], l2=read)


def prefill(shape: Values, c: Values, head_dim: int, causal: bool) -> Work:
    """FlashAttention forward: a block attends BLOCK_M queries of one head, a trip BLOCK_N keys."""
    batch, q, kv = shape["batch"], shape["q_len"], shape["kv_len"]
    heads, kv_heads = shape["heads"], shape["kv_heads"]
    rows, longest = -(-q // c["BLOCK_M"]), -(-kv // c["BLOCK_N"])
    blocks = batch * heads * rows
    trips, masked = longest, (kv % c["BLOCK_N"] > 0) * 1
    if causal:  # row i sees the prefix and (i + 1) blocks of queries, the last one what is left
        first = q + (c["BLOCK_M"] - q) * (q > c["BLOCK_M"])  # queries of the first row: min(q, BLOCK_M)
        trips = (kv - q + 0.5 * (first + q)) / c["BLOCK_N"] + 0.5
        masked = first / c["BLOCK_N"] + 0.5
    dram = 4 * head_dim * batch * (q * heads + kv * kv_heads)
    return Work(blocks, trips, longest, dram, 0, blocks * masked)


def decode(shape: Values, c: Values, head_dim: int) -> Work:
    """Paged decode: a block attends one KV head's queries to one split of one sequence; `idle` counts reduced rows.

    `kv_len` is the mean of the sequences' lengths; a shape may bring the `longest`, which ends last. `blocks` counts
    the splits that have something to do, `trips` what each of them has, so that their product is the work of all: both
    are means over lengths spread evenly up to the longest.
    """
    batch, kv, heads, kv_heads = shape["batch"], shape["kv_len"], shape["heads"], shape["kv_heads"]
    last = shape.get("longest", kv)
    splits = c["SPLITS"]
    used = mean_used(kv, last, c["BLOCK_N"], splits)
    trips = mean_trips(kv, last, c["BLOCK_N"]) / used
    dram = 4 * head_dim * batch * kv * kv_heads
    return Work(batch * kv_heads * used, trips, -(-last // (splits * c["BLOCK_N"])), dram, batch * kv_heads * splits,
                batch * heads * splits * (splits > 1))  # fmt: skip


def even_range(kv: Any, longest: Any) -> tuple[Any, Any]:
    """Return the range, first value excluded, that lengths of mean `kv` fill evenly up to the longest; none below 1."""
    spread = longest - kv
    spread = spread - (spread - kv + 1) * (spread >= kv)
    return kv - spread - 1, kv + spread


def mean_trips(kv: Any, longest: Any, step: Any) -> Any:
    """Mean of ⌈length / step⌉ over lengths spread evenly around `kv` up to the longest; where all are `kv`, its own.

    Of a ragged batch a large step leaves some sequences a trip less than the mean length takes.
    """
    low, high = even_range(kv, longest)
    return (_trips_up_to(high, step) - _trips_up_to(low, step)) / (high - low)


def _trips_up_to(length: Any, step: Any) -> Any:
    """Sum of ⌈x / step⌉ over x = 1 … length."""
    whole = length // step
    return (whole + 1) * (length - 0.5 * step * whole)


COUNTED = 4096  # trips of a sequence up to which the splits that work are counted one by one; beyond, all of them do


@cache
def used_up_to(splits: int) -> NDArray[np.float64]:
    """Sum over sequences of 1 … n trips of the splits that have something to do: [n], n from 0 to `COUNTED` + 1.

    Splits take whole trips, ⌈n / splits⌉ each, so that of n trips the last splits may find none left.
    """
    trips = np.arange(COUNTED + 2)
    each = np.maximum(-(-trips // splits), 1)
    return np.asarray(np.cumsum(-(-trips // each)), float)


def mean_used(kv: Any, longest: Any, step: Any, splits: Any) -> Any:
    """Mean number of splits that have something to do, over lengths spread as in `mean_trips`; `step` keys a trip."""
    low, high = even_range(kv, longest)
    return (_used_to(high, step, splits) - _used_to(low, step, splits)) / (high - low)


def _used_to(length: Any, step: Any, splits: Any) -> Any:
    """Sum of the splits with something to do over lengths 1 … length."""
    sums, at = _sums(splits), length // step
    whole = np.minimum(at, COUNTED)
    return step * (sums(whole) + (at - whole) * splits) + (length % step) * (sums(whole + 1) - sums(whole))


def _sums(splits: Any) -> Callable[[Any], Any]:
    """Return `used_up_to` of one number of splits, or of an array of them (configurations across)."""
    if np.ndim(splits) == 0:
        sums = used_up_to(int(splits))
        return lambda trips: sums[np.asarray(trips, np.int64)]
    kinds, row = np.unique(splits, return_inverse=True)
    table = np.stack([used_up_to(int(kind)) for kind in kinds])
    return lambda trips: table[row, np.asarray(trips, np.int64)]


def mapper(kernel: str) -> Callable[[Values, Values], Work]:
    """Return `work(shape, configuration)` of a kernel."""
    kind = family(kernel)
    if kind == "gemm":
        each = 1 if kernel == "gemm_fp8" else 2
        return lambda shape, c: gemm(shape, c, each)
    if kind == "moe":
        up, launch = is_up(kernel), layer if kernel in ("moe_up", "moe_down") else moe
        return lambda shape, c: launch(shape, c, up)
    dim = int(kernel.rsplit("_", 1)[1])
    if kind == "prefill":
        causal = "causal" in kernel
        return lambda shape, c: prefill(shape, c, dim, causal)
    return lambda shape, c: decode(shape, c, dim)


def check_shape(kernel: str, names: Iterable[str]) -> None:
    """Refuse a shape by the first of its field names that the kernel has not, or by the first that is missing.

    Raises:
        UnknownField, MissingField: named in the error.
    """
    given, needed = list(names), KIND_FIELDS[family(kernel)]
    known = needed + LOAD.get(family(kernel), ())
    for name in given:
        if name not in known:
            raise UnknownField(
                f"{kernel} has no field {name!r};{did_you_mean(name, known)} fields: {', '.join(known)}", field=name
            )
    for name in needed:
        if name not in given:
            raise MissingField(f"{kernel} needs {name!r}; its shape is {', '.join(needed)}", field=name)

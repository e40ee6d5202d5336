"""Kernels read from their source: counts of blocks, trips and bytes beside the hand-written maps of our own kernels,
and beside plain counting for kernels of other shapes (persistent, causal, row-wise, data-dependent)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from lab.own_kernels.kernels import (  # noqa: E402
    gemm,
    grouped,
    prefill,
)
from pipewave.errors import BadInput  # noqa: E402
from pipewave.tune import shipped_kernels as mapping  # noqa: E402
from tests.with_triton.block_by_block import count  # noqa: E402


@dataclass(frozen=True)
class Fake:
    """A tensor argument that nobody allocated."""

    size: int
    width: int = 2

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return self.width

    def data_ptr(self) -> int:
        return 0


def tiles(pick: random.Random) -> dict[str, int]:
    return {
        "BLOCK_M": pick.choice((16, 64, 128)),
        "BLOCK_N": pick.choice((32, 64, 128)),
        "BLOCK_K": pick.choice((32, 64)),
    }


@pytest.mark.parametrize("seed", range(8))
def test_a_dense_product_is_read_as_the_map_written_by_hand_says(seed: int) -> None:
    pick = random.Random(seed)
    m, n, k, c = pick.randint(1, 3000), 64 * pick.randint(1, 64), 128 * pick.randint(1, 64), tiles(pick)
    given = {"a": Fake(m * k), "w": Fake(n * k), "c": Fake(m * n), "scale": 1.0, "M": m, "N": n, "K": k, "GROUP_M": 4}
    found = count(gemm.gemm, (gemm.blocks(m, n, c["BLOCK_M"], c["BLOCK_N"]),), given, c)
    work = mapping.gemm({"m": m, "n": n, "k": k}, c, 2)
    assert (found.blocks, found.trips, found.longest) == (work.blocks, work.trips, work.longest)
    assert found.flops == pytest.approx(2 * c["BLOCK_M"] * c["BLOCK_N"] * c["BLOCK_K"] * work.trips)
    assert found.read_bytes == pytest.approx(2 * (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"] * work.trips)
    assert found.least == pytest.approx(work.dram, rel=0.35) if m > 64 else found.least
    assert not found.unknown


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_attention_is_read_through_its_inner_function(seed: int, causal: bool) -> None:
    pick = random.Random(seed)
    shape = {"batch": pick.randint(1, 4), "q_len": 64 * pick.randint(1, 12), "heads": 8, "kv_heads": 2}
    shape["kv_len"] = shape["q_len"] + 64 * pick.randint(0, 8)
    c = {"BLOCK_M": pick.choice((64, 128)), "BLOCK_N": pick.choice((32, 64)), "HEADS_FIRST": pick.choice((0, 1))}
    dim, batch, q, kv, heads, kv_heads = (
        128,
        *(shape[name] for name in ("batch", "q_len", "kv_len", "heads", "kv_heads")),
    )
    given = {
        "q": Fake(batch * q * heads * dim),
        "k": Fake(batch * kv * kv_heads * dim),
        "o": Fake(batch * q * heads * dim),
    }
    given |= {"v": given["k"], "scale": 0.1, "q_len": q, "kv_len": kv, "heads": heads, "kv_heads": kv_heads}
    blocks = batch * heads * -(-q // c["BLOCK_M"])
    found = count(prefill.prefill, lambda meta: (blocks,), given | {"HEAD_DIM": dim, "CAUSAL": causal}, c)
    work = mapping.prefill(shape, c, dim, causal)
    assert found.blocks == work.blocks
    assert found.trips == pytest.approx(float(work.trips), rel=0.25)  # a sample of blocks stands for all
    assert found.longest <= work.longest + 1
    if not causal:
        assert found.trips == work.trips


def test_what_is_loaded_is_named_as_unknown_and_both_ways_are_read() -> None:
    m, e, top_k, n, k, c = 512, 8, 2, 256, 512, {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 1}
    rows = grouped.bound(m * top_k, e, 64)
    ids = Fake(rows, 4)
    given = {
        "a": Fake(m * k),
        "w": Fake(e * n * k),
        "c": Fake(m * top_k * n),
        "weights": Fake(m * top_k, 4),
        "sorted_ids": ids,
    }
    given |= {
        "expert_ids": Fake(rows // 64, 4),
        "used_rows": Fake(1, 4),
        "bound_rows": rows,
        "pairs": m * top_k,
        "N": n,
        "K": k,
    }
    found = count(grouped.grouped_gemm, (rows // 64 * 4,), given | {"top_k": top_k, "weigh": 0}, c)
    assert found.trips == k // 64
    assert list(found.unknown) == ["a branch on a value that is not known"]


@triton.jit
def softmax_rows(x, out, rows, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    start, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(start, rows, step, num_stages=STAGES):
        at = tl.arange(0, BLOCK)
        line = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
        top = tl.exp(line - tl.max(line, axis=0))
        tl.store(out + row * cols + at, top / tl.sum(top, axis=0), mask=at < cols)


@triton.jit
def norm_rows(x, out, w, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * cols
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, cols, BLOCK):
        at = off + tl.arange(0, BLOCK)
        a = tl.load(x + at, mask=at < cols, other=0.0).to(tl.float32)
        total += a * a
    scale = 1.0 / tl.sqrt(tl.sum(total, axis=0) / cols)
    for off in range(0, cols, BLOCK):
        at = off + tl.arange(0, BLOCK)
        tl.store(out + row * cols + at, tl.load(x + at, mask=at < cols) * scale * tl.load(w + at, mask=at < cols))


@triton.jit
def triangle(x, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for i in range(n):
        for j in range(i + 1):
            tl.load(x + (row * n + i) * n + j * BLOCK + tl.arange(0, BLOCK))


@triton.jit
def until(x, ends, BLOCK: tl.constexpr):
    left = tl.load(ends + tl.program_id(0))
    while left > 0:
        tl.load(x + tl.arange(0, BLOCK))
        left -= BLOCK
    for i in range(tl.load(ends)):
        tl.load(x + i * BLOCK + tl.arange(0, BLOCK))


@triton.jit
def persistent(a, b, c, M, N, K, SMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, SMS, flatten=True):
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            x = a.load([tile // tl.cdiv(N, BN) * BM, k * BK])
            y = b.load([tile % tl.cdiv(N, BN) * BN, k * BK])
            acc = tl.dot(x, y.T, acc)
        c.store([0, 0], acc.to(tl.float16))


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor: a tensor and the block that is copied at once."""

    base: Fake
    block_shape: list[int]


def test_a_persistent_loop_over_rows() -> None:
    found = count(
        softmax_rows,
        (8,),
        {"x": Fake(100 * 70), "out": Fake(100 * 70), "rows": 100, "cols": 70},
        {"BLOCK": 128, "STAGES": 2},
    )
    assert found.trips == 100 / 8
    assert found.longest == 13
    assert found.moved == 100 * 128 * 2 * 2


def test_two_loops_over_a_row() -> None:
    found = count(
        norm_rows,
        (64,),
        {"x": Fake(64 * 1000, 4), "out": Fake(64 * 1000), "w": Fake(1000), "cols": 1000},
        {"BLOCK": 256},
    )
    assert found.trips == 8
    assert found.read_bytes == pytest.approx(4 * 256 * (4 + 4 + 2))
    assert found.written_bytes == pytest.approx(4 * 256 * 2)


def test_bounds_that_depend_on_an_outer_loop_come_out_as_on_average() -> None:
    found = count(triangle, (4,), {"x": Fake(1 << 20), "n": 100}, {"BLOCK": 16})
    assert found.trips == pytest.approx(100 * 101 / 2, rel=0.02)
    assert found.read_bytes == pytest.approx(100 * 101 / 2 * 16 * 2, rel=0.02)


def test_loops_over_what_is_loaded_are_named_with_their_bounds() -> None:
    found = count(until, (4,), {"x": Fake(1 << 20), "ends": Fake(4, 4)}, {"BLOCK": 16})
    assert any("left > 0" in why for why in found.unknown)
    assert any("range(tl.load(ends))" in why for why in found.unknown)


def test_descriptors_and_tiles_dealt_to_a_fixed_number_of_blocks() -> None:
    m, n, k, c = 1000, 512, 256, {"SMS": 12, "BM": 64, "BN": 128, "BK": 64}
    boxes = {
        name: Descriptor(Fake(size), shape)
        for name, size, shape in (("a", m * k, [64, 64]), ("b", n * k, [128, 64]), ("c", m * n, [64, 128]))
    }
    found = count(persistent, lambda meta: (min(meta["SMS"], 64),), {**boxes, "M": m, "N": n, "K": k}, c)
    tiles_, trips = 16 * 4, 4
    assert found.blocks * found.trips == tiles_ * trips
    assert found.longest == 6 * trips
    assert found.flops * found.blocks == 2 * 64 * 128 * 64 * tiles_ * trips
    assert found.moved == tiles_ * (trips * (64 + 128) * 64 * 2 + 64 * 128 * 2)
    assert not found.unknown


def test_a_grid_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="grid"):
        count(norm_rows, (1, 2, 3, 4), {}, {"BLOCK": 16})
    with pytest.raises(BadInput, match="source"):
        count(len, (1,), {}, {})

"""Formulas read from a kernel's source at one launch, beside counting other launches anew."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from lab.own_kernels.kernels import gemm, prefill  # noqa: E402
from pipewave.tune.shipped_kernels import stated  # noqa: E402
from pipewave.tune.source.formula import Formula, constants_of, follows, formula, inputs_of, values_of  # noqa: E402
from pipewave.tune.source.inspect import Shaped  # noqa: E402
from pipewave.tune.source.interpreter import bound  # noqa: E402
from pipewave.tune.source.launch_work import reading_of, seen, source, tensor_of  # noqa: E402
from pipewave.tune.user_kernels.kernel import described  # noqa: E402
from tests.with_triton.block_by_block import count  # noqa: E402
from tests.with_triton.launches import CDIV, dense, two_ways  # noqa: E402


@triton.jit
def persistent(x, out, M, N, SMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tiles, SMS):
        at = tile * BM * BN + tl.arange(0, BM * BN)
        tl.store(out + at, tl.load(x + at))


@triton.jit
def counted_down(x, n, BLOCK: tl.constexpr):
    left = n
    while left > 0:
        tl.load(x + tl.arange(0, BLOCK))
        left -= BLOCK


@triton.jit
def by_data(x, ends, BLOCK: tl.constexpr):
    for _ in range(tl.load(ends)):
        tl.load(x + tl.arange(0, BLOCK))


@triton.jit
def over_a_cache(keys, lengths, BLOCK: tl.constexpr):
    for start in tl.range(0, tl.load(lengths + tl.program_id(0)), BLOCK):
        tl.load(keys + start + tl.arange(0, BLOCK))


@triton.jit
def in_parts(keys, starts, parts, out, BLOCK: tl.constexpr, LEAST: tl.constexpr):
    length = tl.load(starts + tl.program_id(0) + 1) - tl.load(starts + tl.program_id(0))
    each = tl.cdiv(tl.cdiv(length, tl.load(parts)), LEAST) * LEAST
    first = each * tl.program_id(1)
    last = tl.minimum(first + each, length)
    if last > first:
        for at in tl.range(first, last, BLOCK):
            tl.load(keys + at + tl.arange(0, BLOCK))
        tl.store(out + tl.arange(0, BLOCK), 0.0)


@triton.jit
def asked(x, RATIO: tl.constexpr, WAY: tl.constexpr):
    if WAY > 1:
        tl.store(x, RATIO)


@triton.constexpr_function
def halved(TAIL):
    return TAIL // 2 if TAIL > 4 else TAIL


@triton.jit
def asking(x, out, N: tl.constexpr, WAY: tl.constexpr, TAIL: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    left = N % BLOCK + halved(TAIL)
    for head in range(HEADS):
        asked(x + head * N, HEADS, WAY)
    tl.store(out, 1 if left else 0)


def worked_out(of: Formula, grid: Any, named: dict[str, Any], kernel: Any) -> tuple[Any, ...] | None:
    return of.one(*values_of(of.inputs, inputs_of(grid, named, constants_of(kernel))))


@pytest.mark.parametrize("seed", range(6))
def test_a_formula_read_once_counts_any_other_size_as_reading_it_anew_does(seed: int) -> None:
    pick = random.Random(seed)
    c = {"BLOCK_M": pick.choice((16, 128)), "BLOCK_N": pick.choice((32, 256)), "BLOCK_K": pick.choice((32, 64))}
    made = formula(gemm.gemm, *dense(512, 1024, 2048), c, constants_of(gemm.gemm))
    for _ in range(5):
        grid, named = dense(pick.randint(1, 5000), pick.randint(1, 9000), pick.randint(1, 9000))
        found = worked_out(made, grid, named, gemm.gemm)
        again = count(gemm.gemm, grid, named, c)
        assert found is not None
        wanted = again.blocks, again.trips, again.longest, again.least, again.moved, again.flops * again.blocks
        assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("first", [0, 1])
def test_causal_rows_are_counted_whichever_way_blocks_are_numbered(first: int) -> None:
    c, shape = {"BLOCK_M": 64, "BLOCK_N": 64}, {"batch": 3, "q_len": 4096, "kv_len": 4096, "heads": 8, "kv_heads": 2}

    def launch(s: dict[str, int]) -> tuple[Any, dict[str, Any]]:
        q, kv = s["batch"] * s["q_len"] * s["heads"] * 128, s["batch"] * s["kv_len"] * s["kv_heads"] * 128
        named = {"q": Shaped(q, 2), "k": Shaped(kv, 2), "v": Shaped(kv, 2), "o": Shaped(q, 2), "scale": 0.1,
                 "HEADS_FIRST": first, "HEAD_DIM": 128, "CAUSAL": True}  # fmt: skip
        batch, heads, rows = s["batch"], s["heads"], s["q_len"]
        return lambda c: (batch * heads * CDIV(rows, c["BLOCK_M"]),), named | {
            n: s[n] for n in ("q_len", "kv_len", "heads", "kv_heads")
        }

    made = formula(prefill.prefill, *launch(shape), c, constants_of(prefill.prefill))
    for q in (640, 2048, 9000):
        s = shape | {"q_len": q, "kv_len": q + 320}
        found, wanted = worked_out(made, *launch(s), prefill.prefill), stated("prefill_causal_128")(s, c)
        assert found is not None
        assert found[0] == wanted.blocks
        assert found[1] == pytest.approx(wanted.trips, rel=0.1)
        assert found[2] == pytest.approx(wanted.longest, rel=0.1)


def test_tiles_dealt_to_a_fixed_number_of_blocks() -> None:
    named = {"x": Shaped(1 << 22, 2), "out": Shaped(1 << 22, 2), "M": 2048, "N": 2048}
    made = formula(persistent, (132,), named, {"SMS": 132, "BM": 64, "BN": 64}, constants_of(persistent))
    found = worked_out(made, (132,), named | {"M": 4096, "N": 1024}, persistent)
    assert found is not None
    assert found[1] == pytest.approx(64 * 16 / 132, rel=0.03)
    assert found[2] == 8


def test_a_counter_that_runs_down_is_a_quotient() -> None:
    made = formula(counted_down, (4,), {"x": Shaped(999, 2), "n": 500}, {"BLOCK": 32}, ("BLOCK",))
    for n in (1, 32, 33, 1000):
        found = worked_out(made, (4,), {"x": Shaped(999, 2), "n": n}, counted_down)
        assert found is not None
        assert found[1] == -(-n // 32)


def test_a_launch_that_takes_another_turn_is_refused_not_guessed() -> None:
    made = formula(two_ways, (4,), {"x": Shaped(999, 2), "n": 500}, {"BLOCK": 32}, ("BLOCK",))
    assert worked_out(made, (4,), {"x": Shaped(999, 2), "n": 320}, two_ways)[1] == 10  # type: ignore[index]
    assert worked_out(made, (4,), {"x": Shaped(999, 2), "n": 99}, two_ways) is None


def test_trips_that_depend_on_data_can_be_stated() -> None:
    named = {"x": Shaped(999, 2), "ends": Shaped(8, 4), "rows": 7}
    silent = formula(by_data, (4,), named, {"BLOCK": 32}, ("BLOCK",))
    assert any("range(tl.load(ends))" in why for why in silent.unknown)
    stated = formula(by_data, (4,), named, {"BLOCK": 32}, ("BLOCK",), trips=lambda given: given["rows"] * 3)
    assert worked_out(stated, (4,), named | {"rows": 11}, by_data)[1] == 33  # type: ignore[index]
    uneven = formula(by_data, (4,), named, {"BLOCK": 32}, ("BLOCK",), trips=lambda given: (given["rows"], 50))
    assert worked_out(uneven, (4,), named | {"rows": 11}, by_data)[1:3] == (11, 50)  # type: ignore[index]


class Sizes:
    rows = 640


@pytest.mark.parametrize("kind", ["closure", "default", "tensor", "object"])
def test_grids_are_followed_however_they_come_by_their_sizes(kind: str) -> None:
    c, made = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, None
    for m in (512, 4096):
        _, named = dense(m, 64, 64)
        x, sizes = torch.empty(m, 3, device="meta"), Sizes()
        sizes.rows = m
        grid = {
            "closure": lambda meta: (CDIV(m, meta["BLOCK_M"]),),  # noqa: B023
            "default": lambda meta, rows=m: (CDIV(rows, meta["BLOCK_M"]),),
            "tensor": lambda meta: (CDIV(x.shape[0], meta["BLOCK_M"]),),  # noqa: B023
            "object": lambda meta: (CDIV(sizes.rows, meta["BLOCK_M"]),),  # noqa: B023
        }[kind]
        assert follows(grid) == (kind != "object")
        made = made if made is not None and follows(grid) else formula(gemm.gemm, grid, named, c, ("BLOCK_M",))
        assert worked_out(made, grid, named, gemm.gemm)[0] == m // 64  # type: ignore[index]


def test_arrays_in_arrays_out() -> None:
    c = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
    made = formula(gemm.gemm, *dense(512, 1024, 2048), c, constants_of(gemm.gemm))
    launches = [dense(m, n, k) for m, n, k in ((1, 64, 32), (777, 999, 1234), (4096, 128, 8192))]
    numbers = [inputs_of(grid, named, ("BLOCK_M",)) for grid, named in launches]
    columns = [np.array([each[name] for each in numbers]) for name in made.inputs]
    for i, (grid, named) in enumerate(launches):
        one = worked_out(made, grid, named, gemm.gemm)
        assert one is not None
        assert [float(values[i]) for values in made.many(*columns)] == pytest.approx(one)


def test_a_loop_over_data_turns_until_all_blocks_have_read_its_tensor_once() -> None:
    """4 requests of 1,000 keys in blocks of 64: 16 turns each, whatever their lengths on the device are."""
    keys, lengths = Shaped(4 * 1000, 2, "bf16"), Shaped(4, 4, "int32")
    made = formula(over_a_cache, (4,), {"keys": keys, "lengths": lengths}, {"BLOCK": 64}, ("BLOCK",))
    for requests, each, turns in ((4, 1000, 16), (32, 64, 1), (7, 10, 1), (2, 6400, 100)):
        numbers = {"numel:keys": requests * each, "numel:lengths": requests, "grid:0": requests}
        blocks, trips, longest, _, moved, _ = made.one(*values_of(made.inputs, numbers))
        assert (blocks, trips, longest, moved) == (requests, turns, turns, requests * (turns * 64 * 2 + 4))
    assert any("lengths" in why for why in made.unknown), "and still says that the source does not tell"


@pytest.mark.parametrize("block", [16, 64])
def test_a_cache_in_parts_is_counted_as_its_blocks_turn(block: int) -> None:
    """Two of three loaded numbers are a list of starts, the third counts the parts: blocks beyond the last have none."""
    config = {"BLOCK": block, "LEAST": 32}

    def launch(requests: int, length: int, parts: int) -> tuple[Any, dict[str, Any]]:
        named = {"keys": Shaped(requests * length, 2, "bf16"), "starts": Shaped(requests + 1, 4, "int32"),
                 "parts": Shaped(1, 4, "int32"), "out": Shaped(1 << 20, 4, "fp32")}  # fmt: skip
        return (requests, parts), named

    grid, named = launch(4, 1000, 8)
    made = formula(in_parts, grid, named, config, tuple(config))
    code, constants = source(in_parts)
    for requests, length, parts in ((4, 1000, 8), (3, 161, 8), (8, 8, 8), (1, 30_000, 16), (64, 100, 2)):
        grid, named = launch(requests, length, parts)
        names = bound(code, (), {name: seen(name, value) for name, value in (named | config).items()})
        tensors = {name: tensor_of(value) for name, value in named.items()}
        loaded = {"starts": (length, 0), "parts": (parts,)}
        each = [reading_of(code, constants, names, tensors, (0, at), grid, loaded) for at in range(parts)]
        work = [one for one in each if one.trips]
        moved = sum(sum(one.read.values()) + sum(one.written.values()) for one in work)
        blocks, trips, longest, _, all_moved, _ = made.one(*values_of(made.inputs, inputs_of(grid, named, ())))
        assert (blocks, longest) == (requests * len(work), work[0].trips)
        assert blocks * trips == pytest.approx(requests * sum(one.trips for one in work))
        assert all_moved == pytest.approx(requests * moved)


def test_a_constant_is_a_flag_where_a_branch_asks_for_it_or_for_what_it_makes() -> None:
    """`WAY` is asked in a function that it is handed to, N and TAIL as what is left of a row; no one asks for HEADS."""
    of = described(asking, [{"BLOCK": 64}], ())
    assert of.flags == {"N", "WAY", "TAIL", "BLOCK"}
    small = {"N": 3, "WAY": 1, "TAIL": 0, "HEADS": 5}
    assert of.kind(small) == (("N", "3"), ("WAY", "1"), ("TAIL", "0")) == of.kind({**small, "HEADS": 0.5})
    assert of.kind({**small, "N": 4096}) == of.kind({**small, "N": 512})

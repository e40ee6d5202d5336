"""Sources read for one block without Triton: what expressions stand for, what a block does, numbers that remember."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput
from pipewave.tune.source.emitted import compiled, identifier
from pipewave.tune.source.emitted import plain as in_c
from pipewave.tune.source.expressions import Expressions, either, name_of
from pipewave.tune.source.formula import enclosed, follows, inputs_of, is_size
from pipewave.tune.source.grid_dependence import GridDependence
from pipewave.tune.source.inspect import Shaped, arguments, expression_grid
from pipewave.tune.source.interpreter import Reader, Turns, bound
from pipewave.tune.source.language import Address, Block, Counts, Tensor, Tile, Unknown, broadcast, combined
from pipewave.tune.source.launch_work import seen, tensor_of
from pipewave.tune.source.traced import (
    Trace,
    Traced,
    cdiv,
    chosen,
    greatest,
    least,
    next_power_of_2,
    plain,
    power_of_2,
    same,
)

NAMES = {"x": Address("x"), "p": Address("p", (8, 1)), "t": Tile((4, 8)), "u": Tile((8, 16)), "v": Tile((2, 4, 8)),
         "n": 10, "many": (3, 5), "row": Tile((8,)), "lost": Unknown("lost"), "none": None}  # fmt: skip
TENSORS = {"x": Tensor(1000, 4), "p": Tensor(None, 1)}


def block(**more: Any) -> Block:
    return Block((2, 5), (7, 9), TENSORS, lambda _: None, {"SIZE": SimpleNamespace(value=64)}, **more)


def value_of(text: str) -> Any:
    return Expressions(block(), dict(NAMES)).value(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7 // 2 + 2 ** 3 - 5 % 3 * 2", 7), ("n / 4", 2.5), ("(6 & 3) | (1 << 4) ^ (16 >> 2)", 22), ("-n + ~1", -12),
        ("not n", False), ("+n", 10), ("SIZE * 2", 128), ("3 < n <= 10", True), ("3 < n < 10", False),
        ("none is None", True), ("none is not None", False), ("n is None", False), ("n == 10 and n != 9", True),
        ("n > 11 or n >= 10", True), ("n > 11 or none", False), ("1 if n > 9 else 2", 1), ("1 if none else 2", 2),
        ("many[1] + many[-2]", 8), ("many + (7,)", (3, 5, 7)), ("[1, n]", [1, 10]), ("'a' == 'a'", True),
        ("tl.cdiv(n, 4)", 3), ("triton.next_power_of_2(n)", 16), ("min(n, 3) + max(n, 30)", 33), ("abs(-3)", 3),
        ("int(2.5)", 2), ("float(2)", 2.0), ("bool(0)", False), ("tl.exp2(3)", 8.0), ("tl.sqrt(9)", 3.0),
        ("tl.log2(8)", 3.0), ("tl.program_id(0)", 2), ("tl.program_id(axis=1)", 5),
        ("tl.program_id(2)", 0), ("tl.num_programs(1)", 9), ("tl.num_programs()", 7), ("tl.num_programs(axis=2)", 1),
        ("tl.program_id()", 2), ("tl.where(n > 3, 1, 2)", 1), ("tl.where(n > 30, 1, 2)", 2),
        # Tiles keep their extents.
        ("tl.arange(0, 16)", Tile((16,))), ("tl.arange(8, 32)", Tile((24,))), ("tl.zeros((4, n), 'f')", Tile((4, 10))),
        ("tl.full(shape=[4], value=0)", Tile((4,))), ("tl.zeros_like(t)", Tile((4, 8))), ("t + 1", Tile((4, 8))),
        ("t[:, None]", Tile((4, 1, 8))), ("row[None, :]", Tile((1, 8))), ("row[:, None] + row[None, :]", Tile((8, 8))),
        ("t.T", Tile((8, 4))), ("t.shape", (4, 8)), ("v.trans((0, 2, 1))", Tile((2, 8, 4))),
        ("tl.trans(v)", Tile((8, 4, 2))), ("tl.permute(v, 1, 0, 2)", Tile((4, 2, 8))), ("-t", Tile((4, 8))),
        ("tl.expand_dims(t, 0)", Tile((1, 4, 8))), ("tl.expand_dims(t, axis=-1)", Tile((4, 8, 1))),
        ("tl.reshape(t, 32)", Tile((32,))), ("t.reshape((2, 16))", Tile((2, 16))), ("tl.view(t, 16, 2)", Tile((16, 2))),
        ("tl.broadcast_to(row, (4, 8))", Tile((4, 8))), ("tl.sum(t, 0)", Tile((8,))), ("tl.max(t, axis=1)", Tile((4,))),
        ("tl.sum(v, axis=-1)", Tile((2, 4))), ("tl.sum(t)", Tile(())), ("tl.min(t, 1)", Tile((4,))),
        ("tl.cumsum(t, 0)", Tile((4, 8))), ("t.to('f')", Tile((4, 8))), ("tl.exp(t)", Tile((4, 8))),
        ("tl.where(t > 0, row, 0)", Tile((4, 8))), ("tl.dot(t, u)", Tile((4, 16))), ("t < 3", Tile((4, 8))),
        ("tl.dot(other=u, input=t)", Tile((4, 16))), ("tl.arange(start=0, end=16)", Tile((16,))),
        ("tl.arange(8, end=32)", Tile((24,))), ("tl.zeros_like(input=t)", Tile((4, 8))),
        ("tl.where(n > 3, x=1, y=2)", 1), ("tl.reshape(t, shape=(8, 4))", Tile((8, 4))),
        ("tl.broadcast_to(input=row, shape=(4, 8))", Tile((4, 8))), ("tl.trans(input=t)", Tile((8, 4))),
        ("tl.expand_dims(input=t, axis=0)", Tile((1, 4, 8))), ("tl.sum(input=t, axis=1)", Tile((4,))),
        ("tl.exp(x=t)", Tile((4, 8))), ("tl.cdiv(x=n, div=4)", 3), ("tl.load(pointer=p)", Tile((8, 1))),
        ("tl.dot_scaled(t, 0, 'e', rhs=u, rhs_scale=0, rhs_format='e')", Tile((4, 16))), ("tl.dot_scaled(t, 0, 'e', u, 0, 'e')", Tile((4, 16))),
        ("t if lost else lost", Tile((4, 8))), ("tl.maximum(t, row)", Tile((4, 8))),
        # Addresses stay addresses.
        ("x + t", Address("x", (4, 8))), ("p + row", Address("p", (8, 8))), ("p.T", Address("p", (1, 8))),
        ("tl.make_block_ptr(x, (9, 9), (9, 1), (0, 0), (4, 2), (1, 0))", Address("x", (4, 2))),
        ("tl.make_tensor_descriptor(x, (9,), (1,), [16])", Address("x", (16,))),
        ("tl.advance(p, (0, 4))", Address("p", (8, 1))), ("p[:, :, None]", Address("p", (8, 1, 1))),
        ("tl.reshape(p, 8)", Address("p", (8,))), ("tl.load(p)", Tile((8, 1))),
    ],
)  # fmt: skip
def test_what_an_expression_stands_for(text: str, wanted: Any) -> None:
    found = value_of(text)
    assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("other", "the name other"), ("lambda: 1", "Lambda is not followed"), ("n.device", "the attribute device"),
        ("n // 0", "arithmetic that fails"), ("tl.log2(0)", "log2"), ("tl.zeros((4, lost))", "the extent of a tile"),
        ("tl.arange(0, lost)", "the extent of an arange"), ("tl.dot(row, u)", "operands of a dot"),
        ("tl.dot(t, row)", "operands of a dot"), ("tl.dot(t)", "operands of a dot"), ("many[2]", "an entry"),
        ("many[-3]", "an entry"), ("len(many)", "the function len"), ("tl.philox(n)", "the function philox (line 1)"), ("tl.load(n)", "unknown address"),
        ("tl.load(x)", "a value loaded from x"), ("lost + 1", "lost"), ("1 if lost else 2", "one of two values"),
        ("tl.make_block_ptr(n, (9,), (1,), (0,), (4,))", "a block pointer"), ("tl.where(lost, 1, 2)", "a choice"),
        ("tl.dot_scaled(t, 0, 'e')", "operands of a dot"), ("tl.arange(16)", "operands of a arange"),
        ("tl.where(n)", "operands of a where"), ("tl.load()", "operands of a load"), ("n.shape", "a shape"),
    ],
)  # fmt: skip
def test_what_is_not_known_says_why(text: str, why: str) -> None:
    found = value_of(text)
    assert isinstance(found, Unknown) and why in found.why


def read(source: str, names: Any = NAMES, of: Block | None = None) -> Counts:
    of = of or block()
    Reader(of, dict(names)).run(ast.parse(source).body)
    return of.counts


def test_bytes_and_flops_of_a_block() -> None:
    found = read("tl.load(x + t); tl.load(p); tl.store(x, t); tl.store(p, 1); tl.atomic_add(x + row, 1)\n"
                 "tl.dot(t, u); tl.load(other + t); x.load(); tl.store(n, 1); tl.load(unsaid + row)",
                 NAMES | {"unsaid": Address("unsaid")})  # fmt: skip
    assert found.read == {"x": 4 * (32 + 8 + 1), "p": 8, "unsaid": 2 * 8}  # of 2 bytes where nobody says
    assert found.written == {"x": 4 * (32 + 8), "p": 8}
    assert found.flops == 2 * 4 * 8 * 16
    assert list(found.unknown) == ["an address that is not followed"]


@pytest.mark.parametrize(
    ("source", "trips", "loaded"),
    [
        ("for i in range(5): tl.load(p)", 5, 5), ("for i in range(2, 11, 4): tl.load(p)", 3, 3),
        ("for i in tl.static_range(3): tl.load(p)", 3, 3), ("for i in tl.range(4, 2): tl.load(p)", 0, 0),
        ("for i in range(6, 0, -2): tl.load(p)", 3, 3),
        ("for i in range(4):\n for j in range(3): tl.load(p)", 12, 12),
        ("for i in range(3):\n for j in range(i): tl.load(p)", 3, 3),
        ("for i in range(101):\n for j in range(i): tl.load(p)", 5050, 5050),  # Simpson is exact for a line
        ("for i in range(9):\n for j in range(2): tl.load(p)\n for j in range(5): tl.load(p)", 63, 63),
        ("k = 10\nwhile k > 0:\n tl.load(p)\n k -= 3", 4, 4), ("k: int = 0\nwhile k < 3: k += 1", 3, 0),
        ("for i in range(n):\n if i > 90: continue\n tl.load(p)", 10, 10),
        ("if n > 3: tl.load(p)\nelse: tl.load(p); tl.load(p)", 0, 1),
        ("if none: tl.load(p)\nelse: tl.load(p); tl.load(p)", 0, 2),
        ("tl.load(p)\nreturn\ntl.load(p)", 0, 1), ("a, b = 2, 3\nfor i in range(a * b): tl.load(p)", 6, 6),
        ("k = r = 2\nk *= r\nfor i in range(k): tl.load(p)", 4, 4),
    ],
)  # fmt: skip
def test_loops_of_a_block(source: str, trips: float, loaded: float) -> None:
    found = read(source)
    assert float(found.trips) == pytest.approx(trips, rel=1e-9)
    assert float(found.read.get("p", 0)) == pytest.approx(8 * loaded, rel=1e-9)
    assert not found.unknown


def test_what_a_block_may_do_is_read_both_ways_and_named() -> None:
    found = read("if lost:\n tl.load(p)\n k = 3\nelse:\n k = 3\n tl.load(p)\nfor i in range(k): tl.load(p)")
    assert found.read == {"p": 8 * 5} and found.trips == 3
    assert found.unknown == {"a branch on a value that is not known": 1}
    bounds = read("\nfor i in range(lost): tl.load(p)\nfor i in range(0, 4, 0): tl.load(p)\nwhile lost: tl.load(p)")
    assert bounds.read == {"p": 24} and bounds.loops == {2: 1, 3: 1}
    assert bounds.unknown == {
        "bounds of the loop: range(lost)": 2, "bounds of the loop: range(0, 4, 0)": 3, "condition of the loop: lost": 4}  # fmt: skip


def test_functions_are_called_with_their_defaults_and_not_for_ever() -> None:
    (called,) = ast.parse("def f(a, b=2, *, c=4):\n for i in range(a * b): tl.load(a_p)\n return a + b").body
    assert isinstance(called, ast.FunctionDef)
    assert bound(called, (1,), {"c": 5}) == {"a": 1, "b": 2, "c": 5}
    of = block()
    of.functions = lambda name: (called, {}) if name == "f" else None
    reader = Reader(of, dict(NAMES))
    assert reader.value(ast.parse("f(3) + f(1, b=5)", mode="eval").body) == 11
    assert of.counts.trips == 11 and of.depth == 0 and of.constants == block().constants
    (endless,) = ast.parse("def g(a):\n return g(a + 1)").body
    of.functions = lambda name: (endless, {}) if name == "g" else None  # type: ignore[assignment,return-value]
    assert reader.value(ast.parse("g(0)", mode="eval").body) == Unknown("calls that go too deep")


def test_tiles_meet_at_their_common_extent() -> None:
    assert broadcast((4, 1), (8,)) == (4, 8) and broadcast((), (3,)) == (3,) and broadcast((2, 4), (3, 4)) == (3, 4)
    assert combined(Unknown("a"), 1) == Unknown("a") and combined(Unknown("a"), Tile((2,))) == Tile((2,))
    assert either(3, 3) == 3 and either(Tile((2,)), 1) == either(1, Tile((2,))) == Tile((2,))
    assert isinstance(either(3, 4), Unknown) and name_of(ast.parse("a.b.c").body[0].value) == "a.b.c"  # type: ignore[attr-defined]


def test_the_first_the_middle_and_the_last_turn_stand_for_all() -> None:
    assert [(turn, float(share)) for turn, share in Turns(2, 26, 2).sampled()] == [(2, 2.0), (14, 8.0), (24, 2.0)]
    assert list(Turns(5, 11, 2).sampled()) == [(5, 1.0), (7, 1.0), (9, 1.0)]
    assert Turns(5, 1, 2).count == 0


OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda m, n: m + 2 * n - 3, lambda m, n: 3 - m, lambda m, n: (m - n) * (m + n), lambda m, n: m * n * m // 7,
    lambda m, n: m // n + n // 2 + 100 // m, lambda m, n: m % n + 7 % m, lambda m, n: m / 4 + n / m + 1 / n,
    lambda m, n: cdiv(m, n) + cdiv(m, 16), lambda m, n: least(m, n, 5) + greatest(m, n, 50), lambda m, n: -m + abs(n),
    lambda m, n: next_power_of_2(m) + next_power_of_2(n + 1), lambda m, n: m**2 + 2**n, lambda m, n: (m << 2) + (1 << n),
    lambda m, n: (m >> 1) + (m & n) + (m | n) + (m ^ n) + ~m, lambda m, n: chosen(m > n, m, n) + (m <= 9) + (m == n),
    lambda m, n: (m != n) * 2 + (m >= n) + (m < 12), lambda m, n: Fraction(1, 3) * m + m * 2 / 3 + m // 1,
    lambda m, n: m * 0 + 5, lambda m, n: (m + n) % 4 * (m + n) // 3, lambda m, n: +m,
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(OPERATIONS)))
def test_a_number_that_remembers_is_worked_out_for_others_as_python_does(at: int) -> None:
    trace, of = Trace(), OPERATIONS[at]
    made = of(trace.symbol("m", 12), trace.symbol("n", 5))
    assert plain(made) == pytest.approx(of(12, 5))
    inputs, one, many = compiled(trace, [made])
    some = [(12, 5), (9, 9), (3, 8), (100, 7), (64, 2)]
    wanted = [float(of(m, n)) for m, n in some]
    picked = [[{"m": m, "n": n}[name] for name in inputs] for m, n in some]
    assert [float(one(*each)[0]) for each in picked] == pytest.approx(wanted)
    columns = [np.array(column) for column in zip(*picked, strict=True)]
    assert np.broadcast_to(many(*columns)[0], len(some)).tolist() == pytest.approx(wanted)


def test_functions_of_plain_numbers_and_numbers_in_c() -> None:
    assert [cdiv(7, 2), cdiv(8, 2), chosen(True, 3, 4), chosen(False, 3, 4)] == [4, 4, 3, 4]
    assert [least(3, 1, 2), greatest(3, 1, 2), least([4, 2]), greatest([4, 2])] == [1, 3, 2, 4]
    assert [in_c(number) for number in (2.5, -1.0, math.inf, -math.inf, math.nan)] == [
        "(2.5)", "(-1.0)", "(INFINITY)", "(-INFINITY)", "NAN"]  # fmt: skip
    assert identifier("grid:x.1") == "v_grid_x_1"


def test_a_turn_that_was_taken_is_checked() -> None:
    trace = Trace()
    m, n = trace.symbol("m", 12), trace.symbol("n", 5)
    answer = m + 1 if m > n else n
    inputs, one, _ = compiled(trace, [answer])

    def worked_out(function: Any, **given: int) -> Any:
        return function(*(given[name] for name in inputs))

    assert worked_out(one, m=9, n=3) == (10,) and worked_out(one, m=3, n=9) is None
    assert int(m) == 12 and float(n) == 5.0 and hash(m + 1) == hash(1 + m)  # launches must share what was fixed
    _, fixed, _ = compiled(trace, [answer])
    assert worked_out(fixed, m=12, n=5) == (13,) and worked_out(fixed, m=13, n=5) is None


def test_numbers_are_the_same_where_they_were_computed_alike() -> None:
    trace = Trace()
    m, n = trace.symbol("m", 12), trace.symbol("n", 12)
    assert same(m + n, n + m) and same(m * 2 - m, m) and same(3, 3)
    assert not same(m, n) and not same(m, 12) and not same(m, m + 1) and not same(3, 4)
    assert m - m == 0 and isinstance(m * n, Traced) and same(least(m, m), m) and same(m * n, n * m)
    assert [power_of_2(number) for number in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]


def test_work_that_depends_on_a_blocks_place_is_averaged_over_the_grid() -> None:
    """Rows of 4 × 10 blocks: a block's number is taken apart, and the mean of row² of 0 … 9 is not that of its ends."""
    trace = Trace()
    at = trace.symbol("place:0", 20)
    places = GridDependence(trace, {at.terms[0][0]: 40})
    row, column = at // 4, at % 4
    mean, most = places.averaged([row, column * 2 + 1, 7, row * row])
    assert [float(one) for one in mean] == pytest.approx([(0 + 4 * 5 + 9) / 6, 2 * (0 + 4 * 2 + 3) / 6 + 1, 7,
                                                          (0 + 4 * 25 + 81) / 6])  # fmt: skip
    assert [float(one) for one in most] == [9, 7, 7, 81]
    whole = places.averaged([at + 1])
    assert (float(whole[0][0]), float(whole[1][0])) == ((1 + 4 * 21 + 40) / 6, 40)


def test_the_numbers_of_a_launch() -> None:
    tensor, shaped = Shaped(640, 2, "bf16"), SimpleNamespace(base=Shaped(99, 4), block_shape=[64, 32])
    named = {"x": tensor, "M": 7, "BLOCK": 64, "FLAG": 2, "on": True, "scale": 0.5, "box": shaped}
    assert [is_size("M", value, ("M",)) for value in (15, 16, True, 16.0)] == [False, True, False, False]
    assert is_size("M", 1, ())
    assert inputs_of((3, 4), named, ("BLOCK", "FLAG")) == {
        "numel:x": 640, "M": 7, "BLOCK": 64, "numel:box": 99, "grid:0": 3, "grid:1": 4}  # fmt: skip
    assert enclosed(5) == {"grid:0": 5} and tensor_of(shaped) == Tensor(99, 4) and tensor_of(3) is None
    rows, array = 640, np.zeros((2, 5))

    def grid(meta: Any, more: int = 3, x: Any = array) -> Any:
        return rows, more, x

    assert enclosed(grid) == {"grid:rows": 640, "grid:more": 3}
    assert not follows(grid) and follows(lambda _: (rows,)) and follows((1,))  # an array of numpy is no tensor
    assert seen("box", shaped) == Address("box", (64, 32)) and seen("x", tensor) == Address("x")
    assert seen("M", 7) == 7 and isinstance(seen("M", object()), Unknown)


def test_arguments_as_words() -> None:
    found = arguments(["M=4096", "x=bf16[8,128]", "w=fp8[3, 5]", "s=1.5", "causal=true", "no=None", "mode=ieee"])
    assert found == {"M": 4096, "x": Shaped(1024, 2, "bf16"), "w": Shaped(15, 1, "fp8"), "s": 1.5, "causal": True,
                     "no": None, "mode": "ieee"}  # fmt: skip
    widths = {
        name: arguments([f"x={name}[1]"])["x"].width for name in ("fp32", "fp16", "int8", "int32", "int64", "fp64")
    }
    assert widths == {"fp32": 4, "fp16": 2, "int8": 1, "int32": 4, "int64": 8, "fp64": 8}
    assert math.isnan(arguments(["x=nan"])["x"])


@pytest.mark.parametrize("text", ["cdiv(M,", "M\0", "\udc80"])
def test_a_grid_that_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="must be an expression"):
        expression_grid(text)


def test_bytes_are_counted_whatever_operands_are_named() -> None:
    placed = read("tl.store(x, t); tl.load(x + row); tl.atomic_add(p, t)")
    assert placed.written == {"x": 128, "p": 8} and placed.read == {"x": 32, "p": 8}
    assert read("tl.store(pointer=x, value=t); tl.load(pointer=x + row); tl.atomic_add(pointer=p, val=t)") == placed

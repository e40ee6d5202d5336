"""Rounds of timing, sizes of launches, short lists and files, each worked out on a handful of made-up numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadFile
from pipewave.tune import load_table, store
from pipewave.tune.chooser import Held, Memo, _cells, _grouped, shortlist
from pipewave.tune.decorate import KernelReport
from pipewave.tune.engine.lookups import Lookup
from pipewave.tune.engine.profiling import ANCHORS, Profiled, candidates, counts
from pipewave.tune.export import entries, steady, tokens
from pipewave.tune.law.anchors import Peaks
from pipewave.tune.shipped_kernels import stated
from pipewave.tune.store import Measured
from pipewave.tune.tables import explain, runs
from pipewave.tune.user_kernels.call_sites import Place, named
from pipewave.tune.user_kernels.device import Built, Launch
from pipewave.tune.user_kernels.hooks import Benched, noted, read_log, user_benchmark
from pipewave.tune.user_kernels.kernel import KernelDescription
from pipewave.tune.user_kernels.kind_state import KindState
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas, drawn, sizes
from pipewave.tune.user_kernels.measuring import (
    STAGES,
    Timed,
    _twice,
    bounds_us,
    measure,
    resident,
    staged,
    undisturbed,
)
from pipewave.tune.user_kernels.offline import from_shapes
from pipewave.tune.user_kernels.offline import noted as noted_again

SMALL = Peaks("small", sms=10, sm_flops_us=100.0, sm_bytes_us=50.0, bytes_us=200.0, l2_bytes=500.0)


def test_no_launch_beats_its_flops_and_its_bytes() -> None:
    rows = np.array([[25.0, 4, 4, 1000, 3000, 50_000], [25, 4, 4, 20_500, 3000, 50_000], [0, 4, 4, 0, 0, 1000]])
    assert bounds_us(rows, SMALL, narrow=False).tolist() == [60, 100, 10]
    assert bounds_us(rows, SMALL, narrow=True).tolist() == [30, 100, 5]


class Card:
    """A device that takes given µs, whose clock moves by a second a call."""

    def __init__(self, us: Sequence[float]) -> None:
        self.us, self.peaks, self.built, self.timed, self.now = us, SMALL, list[int](), list[list[int]](), 0.0
        self.env: dict[str, Any] = {}

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def idle(self) -> bool:
        return True

    def build(self, launch: Any, configs: Sequence[int]) -> dict[int, Built]:
        self.built += configs
        return {index: Built(error="no" if self.us[index] < 0 else "") for index in configs}

    def time(self, launch: Any, order: Sequence[int]) -> list[float]:
        self.timed.append(list(order))
        return [self.us[index] for index in order]


def test_what_cannot_win_is_not_compiled_once_eight_were_timed() -> None:
    us = [70.0, 80, -1, 90, 100, 110, 120, 130, 65, 60]
    work = np.tile([10.0, 1, 1, 0, 0, 5000.0], (10, 1))  # 5 µs at least
    work[8, 5] = 75_000.0  # 75 µs: slower than the 70 that was found
    card = Card(us)
    found = measure(card, None, range(10), work, np.arange(10.0), False)  # type: ignore[arg-type]
    assert card.built == [*range(8), 9] and found.seconds == 2.0 and found.built[2].error == "no"
    assert np.isnan(found.us[[2, 8]]).all() and found.us[[0, 9]].tolist() == [70, 60]
    every = Card(us)
    measure(every, None, range(10), work, -np.arange(10.0), False, followed=False)  # type: ignore[arg-type]
    assert every.built == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_long_launches_are_timed_once_more_where_they_are_close() -> None:
    card = Card([1000.0, 1070.0, 1100.0])
    measure(card, None, range(3), np.zeros((3, 6)), np.zeros(3), False)  # type: ignore[arg-type]
    assert [set(order) for order in card.timed] == [{0, 1, 2}, {0, 1}] and len(card.timed[1]) == 5
    short = Card([399.0, 2000.0])
    measure(short, None, range(2), np.zeros((2, 6)), np.zeros(2), False)  # type: ignore[arg-type]
    assert len(short.timed) == 1 + sum(rounds for rounds, _ in STAGES)


def test_a_launch_is_timed_in_part_where_more_would_take_too_long() -> None:
    us = [100.0] * 8 + [100.0, 200, 400, 800]
    expected = np.array([1.0] * 8 + [2, 4, 8, 16])  # in no unit: 860, 1260, 2060 and 3660 µs for two rounds
    for left_us, timed in ((0, 0), (859, 0), (861, 1), (2121, 2), (1e9, 4)):
        card = Card(us)
        most_s = 1.0 + left_us * 1e-6  # the first eight took a second
        found = measure(card, None, range(12), np.zeros((12, 6)), expected, False, most_s=most_s)  # type: ignore[arg-type]
        assert np.isfinite(found.us).sum() == 8 + timed
    long = Card([us[0] * 4] * 9)  # one round: 400 · 2 + 230
    found = measure(long, None, range(9), np.zeros((9, 6)), expected[:9], False, most_s=1.001031)  # type: ignore[arg-type]
    assert np.isfinite(found.us).all()


def test_physics_orders_what_few_launches_say_little_of() -> None:
    state, counts = KindState(None), np.tile([25.0, 4, 4, 1000, 3000, 50_000], (2, 1))  # type: ignore[arg-type]
    physics = state.expected_us(counts, SMALL)
    state.model = SimpleNamespace(law_us=lambda _: 16 * physics[None])  # type: ignore[assignment]
    for launches, times in ((0, 1), (4, 4), (12, 8)):
        state.fitted_to = launches
        assert np.allclose(state.expected_us(counts, SMALL), times * physics)


def test_close_configurations_are_timed_again_and_again() -> None:
    us = [10.0, 12.9, 19.0, 25.0]
    taken: dict[int, list[float]] = {}
    staged(lambda order: [us[index] for index in order], range(4), taken)
    assert [len(taken[index]) for index in range(4)] == [5, 3, 2, 1]
    again: dict[int, list[float]] = {}
    staged(lambda order: [us[index] for index in order], range(4), again, always=[3])
    assert [len(again[index]) for index in range(4)] == [5, 3, 2, 5]


def test_two_launches_stand_at_an_even_and_an_odd_place_of_a_queue() -> None:
    for order in ([7, 8, 9], [7, 8], [7, 8, 9, 5]):
        asked: list[int] = []

        def places(queue: Sequence[int], asked: list[int] = asked) -> list[float]:
            asked[:] = queue
            return [float(at) for at in range(len(queue))]

        gap = 3 if len(order) < 4 else 5
        assert _twice(places, order) == [at + gap / 2 for at in range(len(order))]
        assert asked[-len(order) :] == asked[: len(order)] == order and gap % 2


def test_rounds_that_were_stretched_are_dropped() -> None:
    assert undisturbed([10.0, 12.4, 12.6, 10.2]) == [10.0, 12.4, 10.2]
    assert undisturbed([1.0, 2.9, 3.1]) == [1.0, 2.9] and undisturbed([]) == []


@pytest.mark.parametrize(
    ("built", "warps", "held"),
    [
        (Built(0, 16), 1, 32), (Built(0, 17), 4, 16), (Built(0, 100), 4, 4), (Built(0, 255), 32, 1), (Built(0, 8), 4, 16),
        (Built(56_000, 32), 4, 4), (Built(57_344, 32), 4, 4), (Built(57_345, 32), 4, 3), (Built(0, 104), 8, 2),
    ],
)  # fmt: skip
def test_blocks_that_an_sm_holds(built: Built, warps: int, held: int) -> None:
    """Of 233,472 bytes, 1,024 of each block's taken; 65,536 registers in eights a thread, 16 at least; 2,048 threads."""
    assert resident([built], np.array([warps]), SMALL).tolist() == [held]


KERNEL = KernelDescription(None, "mine", ({"B": 16, "num_warps": 4}, {"B": 32, "num_warps": 4},
                           {"B": 16, "num_warps": 8}), ("M",), ("x", "M", "N"), ("B",), {}, "sha")  # fmt: skip
LAUNCHES = [{"M": m, "N": n, "numel:x": m * n, "K2": 2 * m, "BLOCK": block}
            for m, n, block in ((10, 100, 128), (70, 30, 32), (500, 900, 1024))]  # fmt: skip


def test_sizes_are_what_no_product_of_others_explains() -> None:
    ordered = sizes(["N", "BLOCK", "numel:x", "K2", "M"], ["M", "absent"], LAUNCHES)
    assert ordered.names == ("M", "N") and ordered.rounded == {"BLOCK": "N"}
    assert ordered.follow["numel:x"] == ({"M": 1, "N": 1}, pytest.approx(1))
    assert ordered.follow["K2"] == ({"M": 1, "N": 0}, pytest.approx(2))
    assert ordered.at(LAUNCHES).tolist() == [[10, 100], [70, 30], [500, 900]]
    found = {name: column.tolist() for name, column in ordered.numbers(np.array([[3.0, 5.0], [8.0, 64.0]])).items()}
    assert found == {"M": [3, 8], "N": [5, 64], "BLOCK": [8, 64], "numel:x": [15, 512], "K2": [6, 16]}
    assert ordered.at([]).shape == (0, 2)


def test_extents_that_are_no_product_are_a_size_and_those_of_a_padded_tensor_are_none() -> None:
    """A cache of so many tokens is told by its extents alone; the smallest such tensor is the size, others follow."""
    launches = [{"M": m, "numel:padded": m * 128 + pad, "numel:cache": 512 * tokens, "numel:index": tokens}
                for m, pad, tokens in ((10, 100, 9000), (70, 0, 300), (500, 64, 70_000), (30, 8, 41))]  # fmt: skip
    ordered = sizes(["numel:cache", "numel:padded", "numel:index", "M"], [], launches)
    assert ordered.names == ("M", "numel:index")
    assert ordered.follow["numel:cache"] == ({"M": 0, "numel:index": 1}, pytest.approx(512))
    assert ordered.follow["numel:padded"][0] == {"M": 1}


def test_a_quotient_of_sizes_is_none_of_its_own() -> None:
    """Chunks of a sequence follow from it and a chunk's length, over eight launches; two may agree by chance."""
    launches = [{"S": chunk * chunks, "L": chunk, "NC": chunks, "numel:square": chunk * chunk * 3}
                for chunk in (64, 128, 256) for chunks in (1, 3, 10)]  # fmt: skip
    ordered = sizes(["S", "L", "NC", "numel:square"], [], launches)
    assert ordered.names == ("S", "L")
    assert ordered.follow["NC"] == ({"S": 1, "L": -1}, pytest.approx(1))
    columns = ordered.numbers(np.array([[1000.0, 10.0]]))
    assert (columns["NC"].tolist(), columns["numel:square"].tolist()) == ([100.0], [300.0])
    assert sizes(["S", "L", "NC"], [], launches[:7]).names == ("S", "L", "NC")


def test_launches_are_drawn_around_those_seen() -> None:
    found = drawn(np.array([[2.0, 100.0], [64.0, 100.0]]), 4000)
    assert found.shape == (4000, 2) and (found == drawn(np.array([[2.0, 100.0], [64.0, 100.0]]), 4000)).all()
    assert (found.min(axis=0) >= [1, 25]).all() and (found.max(axis=0) <= [256, 400]).all()
    assert found[:, 1].min() < 30 and found[:, 1].max() > 350 and np.median(found[:, 1]) == pytest.approx(100, rel=0.1)
    assert 0.2 < np.mean(found[:, 1] % 16 == 0) < 0.6  # half of them round
    inside = drawn(np.array([[2.0, 100.0], [64.0, 100.0]]), 400, wider=1.0)
    assert inside[:, 1].tolist() == [100.0] * 400


def test_configurations_that_count_alike_share_a_formula() -> None:
    made = LaunchFormulas(KERNEL)
    made.state(lambda n, c: (n["M"] // c["B"], n["N"], 1, 2, 3, n["M"] * c["B"]), {"M": 64, "N": 5})
    assert made.group.tolist() == [0, 1, 0] and len(made.formulas) == 2 and set(made.inputs) == {"M", "N"}
    assert made.counts({"M": 100, "N": 7}).tolist() == [[6, 7, 1, 2, 3, 1600], [3, 7, 1, 2, 3, 3200],
                                                        [6, 7, 1, 2, 3, 1600]]  # fmt: skip
    many = made.many({"M": np.array([100.0, 64.0]), "N": np.array([7.0, 5.0])})
    assert many.shape == (2, 3, 6) and many[1, 1].tolist() == [2, 5, 1, 2, 3, 2048]
    assert made.covers({"M": 1, "N": 1, "more": 1}) and not made.covers({"M": 1})


def test_files_hold_few_runs_that_the_nearest_key_finds() -> None:
    assert tokens(100).tolist() == [*range(1, 65), 80, 96] and tokens(64)[-1] == 64
    us = np.array([[1.0, 1.01, 2.0], [1.0, 1.01, 2.0], [3.0, 1.0, 1.0], [3.0, 1.5, 1.0]])
    assert steady(us) == [(0, 2, 1), (3, 3, 2)] and steady(us, 0.0) == [(0, 1, 0), (2, 3, 2)]
    configs = [{"BLOCK_M": 16}, {"BLOCK_M": 32, "num_warps": 4}]
    assert entries(np.array([1, 2, 64, 80]), [(0, 2, 0), (3, 3, 1)], configs) == {
        "1": {"BLOCK_SIZE_M": 16}, "64": {"BLOCK_SIZE_M": 16},
        "65": {"BLOCK_SIZE_M": 32, "num_warps": 4}, "80": {"BLOCK_SIZE_M": 32, "num_warps": 4}}  # fmt: skip
    made = Profiled((1, 60, 80), tuple(configs), np.array([[1.0, 2.0]] * 3), np.array([1, 0, 0]),
                    {"triton_version": "3", "1": configs[0], "64": configs[0], "65": configs[1]})  # fmt: skip
    assert [us.tolist() for us in made.timed_us()] == [[2, 1, 1], [1, 1, 2]]


def test_candidates_of_an_engine_fit_and_experts_are_both_products() -> None:
    every, blocks = (candidates(Lookup("vllm", "moe", 768, 2048, dtype, 8, 2)) for dtype in ("bf16", "fp8_block"))
    for some, width in ((every, 2), (blocks, 1)):
        assert len({tuple(one.items()) for one in some}) == len(some)
        for one in some:
            rows, cols, depth, _, warps, stages = one.values()
            assert stages * (rows + cols) * depth * width <= 200_000
            assert warps == (8 if rows * cols >= 128 * 128 else 4) and one["GROUP_SIZE_M"] in (1, 16)
    assert {one["BLOCK_SIZE_K"] for one in every} == {64, 128} and {one["BLOCK_SIZE_K"] for one in blocks} == {128}
    assert {one["BLOCK_SIZE_N"] for one in every} == {32, 64, 128, 256} > {one["BLOCK_SIZE_N"] for one in blocks}
    assert {one["BLOCK_SIZE_M"] for one in every} == {16, 32, 64, 128} and {one["num_stages"] for one in every} == {
        3,
        4,
    }
    assert (len(every), len(blocks)) == (110, 48)
    assert all(math.log2(m).is_integer() or math.log2(m / 3).is_integer() for m in ANCHORS) and ANCHORS[-1] == 8192
    shape, config = {"m": 64, "e": 8, "top_k": 2, "hidden": 2048, "inter": 768}, blocks[3]
    up, down = (stated(kernel)(shape, {name.replace("SIZE_", ""): value for name, value in config.items()})
                for kernel in ("moe_w13", "moe_w2"))  # fmt: skip
    found = counts(Lookup("vllm", "moe", 768, 2048, "fp8_block", 8, 2), np.array([64]), [config])[0, 0]
    assert found[:3].tolist() == pytest.approx([up.blocks, up.trips, up.longest])
    assert found[3:5].tolist() == pytest.approx([up.dram + down.dram, up.l2 + down.l2])


def test_a_short_list_ends_where_little_is_lost_and_keeps_a_default_that_is_near() -> None:
    lost = np.array([[0.0, 0.05, 0.5]] * 8)
    assert shortlist(lost, np.array([0] * 8)).tolist() == [0]
    assert shortlist(lost, np.array([1] * 8)).tolist() == [0, 1] and shortlist(lost, np.array([2] * 8)).tolist() == [0]
    assert shortlist(lost[:7], np.array([2] * 7)).tolist() == [0, 1]  # few samples do not tell that one is enough
    assert shortlist(np.vstack([lost, [[0.031, 0.0, 0.5]]]), np.zeros(9, int)).tolist() == [0, 1]
    assert shortlist(np.vstack([lost, [[0.015, 0.0, 0.5]]]), np.zeros(9, int)).tolist() == [0]
    many = 1.0 - np.eye(40)
    assert len(shortlist(many, np.zeros(40, int))) == 16


def test_cells_are_bit_lengths_of_sizes_less_one() -> None:
    assert _cells(np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 65.0]]), 1).tolist() == [1, 2 << 7 | 3, 2 << 7 | 7]
    assert _cells(np.array([[3.0, 5.0], [9.0, 65.0]]), 2).tolist() == [1 << 7 | 1, 2 << 7 | 3]
    assert {name: at.tolist() for name, at in _grouped(np.array([5, 3, 5, 3, 9]))} == {3: [1, 3], 5: [0, 2], 9: [4]}
    held = Held(("M",), np.log([[1.0], [100.0]]), np.array([[1, 2], [3, 4]]))
    assert held.of({"M": np.array([9.0, 11.0]), "N": np.array([1.0, 1.0])}).tolist() == [[1, 2], [3, 4]]
    memo: Memo[int] = Memo()
    assert memo.keep("a", 3) == 3 and memo["a"] == 3


def test_ranges_that_share_a_choice() -> None:
    assert runs(lambda point: point // 3, [1, 2, 3, 5, 6]) == [(1, 2, 0), (3, 5, 1), (6, 6, 2)]


def test_an_explanation_adds_up() -> None:
    table = load_table("gemm", gpu="H200", env={})
    found = explain(table, {"m": 300, "n": 4096, "k": 4096}, rows=3)
    rows, chosen = found["candidates"], found["candidates"][0]
    assert len(rows) in (3, 4) and [row["us"] for row in rows[1:3]] == sorted(row["us"] for row in rows[1:3])
    for row in rows:
        assert sum(row[name] for name in ("launch", "waves", "work", "bytes")) == pytest.approx(1, abs=0.003)
        assert 0 < row["within_us"] < row["us"]
    default = next(row for row in rows if row["is"] == "default")
    assert found["speed_up"] == pytest.approx(default["us"] / chosen["us"])
    every = explain(table, {"m": 300, "n": 4096, "k": 4096}, rows=1000)["candidates"]
    low = min(row["us"] - row["within_us"] for row in every)
    assert found["regret_bound"] == pytest.approx((chosen["us"] + chosen["within_us"]) / low - 1)


def test_a_grid_with_several_defaults_gives_the_one_that_is_asked_for() -> None:
    rows = 9

    def grid(meta: Any, a: int = 1, b: int = 2, c: int = 3) -> Any:
        return rows, a, b, c

    for name, wanted in (("a", 1), ("b", 2), ("c", 3), ("rows", 9)):
        place = Place(KERNEL, ("x", 64), {"N": 5}, grid, (f"grid:{name}", "M", "N"))
        assert place.pick(("x", 64), {"N": 5}, grid)[-3:] == (wanted, 64, 5)
        assert place.pick(("x", 64, 1), {"N": 5}, grid) is None and place.pick(("x", 64), {}, grid) is None
    place = Place(KERNEL, ("x", 64), {}, (4, 8), ("grid:1",))
    assert place.pick(("x", 64), {}, (4, 8))[-1] == 8 and place.pick(("x", 64), {}, grid) is None
    assert named(KERNEL, ("t", 3), {"N": 4}) == {"x": "t", "M": 3, "N": 4}


def test_a_benchmark_of_the_users_own_is_asked_once_a_launch_and_answers_in_ms() -> None:
    asked: list[Any] = []
    fn = SimpleNamespace(run=lambda *args, **given: asked.append(given["B"]))

    def bench(call: Any, quantiles: Any) -> Any:
        call()
        return [0.25, 0.1, 0.5] if len(asked) % 2 else 0.5

    timer, launch = Benched(Card([1.0]), bench), Launch(fn, (1,), (), {}, [{"B": 16}, {"B": 32}])
    assert timer.time(launch, [0, 1, 0]) == [250.0, 500.0, 250.0] and asked == [16, 32]
    assert timer.time(Launch(fn, (1,), (), {}, [{"B": 16}]), [0]) == [250.0]
    assert user_benchmark(SimpleNamespace(_do_bench=bench, num_reps=3)) is None
    assert user_benchmark(SimpleNamespace(_do_bench=bench)) is bench


def test_launches_of_a_run_are_noted_and_made_again(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "log"
    x = SimpleNamespace(data_ptr=int, element_size=lambda: 2, numel=lambda: 6, shape=(2, 3), dtype="torch.bf16",
                        stride=lambda: (3, 1))  # fmt: skip
    for m in (64, 64, 128):
        noted(target, KERNEL, {"x": x, "M": m}, lambda given: given["M"] // given["B"], {"M": m}, np.ones((3, 6)))
    target.write_text(target.read_text() + "\n")
    first, second = read_log(target, "mine")
    assert first["args"] == {"x": {"tensor": "torch.bf16", "shape": [2, 3], "strides": [3, 1]}, "M": 64}
    assert first["grids"] == [[4], [2], [4]] and second["grids"] == [[8], [4], [8]]
    kernel: Any = SimpleNamespace(of=KERNEL)
    again = noted_again(second, kernel)
    assert [again.grid(config) for config in KERNEL.configs] == [(8,), (4,), (8,)] and again.grid({"B": 7}) == (8,)
    with pytest.raises(BadFile, match="with 1 configurations, mine has 3"):
        noted_again({**second, "grids": [[1]]}, kernel)
    with pytest.raises(BadFile, match="no launch of other"):
        read_log(target, "other")
    written = tmp_path / "shapes.json"
    written.write_text(json.dumps({"grid": "cdiv(M, B)", "launches": [{"M": 100, "x": "bf16[4,4]"}]}))
    (launch,) = from_shapes(written)
    assert launch.grid({**launch.args, "B": 16}) == (7,) and launch.args["x"].elements == 16
    for launches in ([100], ["M=100"], [None], 100, None):
        written.write_text(json.dumps({"grid": "1", "launches": launches}))
        with pytest.raises(BadFile, match="must be"):
            from_shapes(written)


def test_measured_launches_come_back_from_the_store(tmp_path: Path) -> None:
    timed = Timed(np.array([1.5, np.nan, np.nan]), {0: Built(100, 40), 1: Built(error="worse")}, 0.25)
    one = Measured((("x", "bf16"),), {"M": 64}, np.arange(18.0).reshape(3, 6), timed)
    env = {"gpu": "G", "driver": "1", "triton": "3"}
    store.append(tmp_path / "mine", KERNEL, env, one)
    (again,) = store.launches(tmp_path / "mine", KERNEL, env)
    assert again.kind == one.kind and again.numbers == {"M": 64} and again.counts.tolist() == one.counts.tolist()
    assert again.timed.us[0] == 1.5 and np.isnan(again.timed.us[1:]).all() and again.timed.seconds == 0.25
    assert again.timed.built == {0: Built(100, 40), 1: Built(0, 32, "did not compile")}
    assert not store.launches(tmp_path / "mine", KERNEL, {**env, "driver": "2"})


def test_a_report_says_what_was_done() -> None:
    report = KernelReport("mine", 3, 2, 1, 0.26, 1.234, "B=16", "")
    assert str(report) == ("mine: 3 launches measured in 0.3 s, 2 chosen by the model, 1 by triton.autotune; "
                           "1.23 × over the first configuration; last B=16")  # fmt: skip
    assert str(KernelReport("mine", 0, 2, 1, 0, 1, "B=16", "why")).endswith("nothing measured; last B=16; why")

"""How published runs become cases and scores: by hand on rows of one's own, and on the corpus where it is there."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab import stream_cost
from pipewave.models import load
from pipewave.models.attention_spec import Gqa, Recurrent
from pipewave.software import front
from studies import published, published_rows
from studies.published_rows import PARTS, Group, Row, corpus, of_peak, of_reading, read
from studies.published_series import PLACE, drafting, series
from train import published_cover, published_fit

GROUPS = [Group("s", "vllm", gpu, "m", "fp8") for gpu in ("H100", "H200", "B200", "L40S")]


def row(group: Group, ttft: float, **more: str) -> Row:
    return Row("r", group, {"mode": "serve", "engine": "vllm", "model": "m", "gpu": "H100"}, {"ttft_ms": ttft}, **({"needs": ""} | more))  # fmt: skip


def answer(ttft: float, half: float = 0.5) -> dict[str, object]:
    return {"id": "r", "ttft_ms": ttft, "ttft_ms_low": ttft / math.exp(half), "ttft_ms_high": ttft * math.exp(half)}


def test_every_group_counts_alike() -> None:
    rows = [row(GROUPS[0], 100.0)] * 9 + [row(GROUPS[1], 100.0)]
    found = [answer(110.0)] * 9 + [answer(150.0)]
    kinds = published.by_kind(published.by_group(rows, found))
    assert [kind["ttft_ms"]["mape"] for kind in kinds] == [pytest.approx((10 + 50) / 2)]
    assert kinds[0]["rows"] == 10


def test_rows_that_need_more_and_old_engines_are_apart() -> None:
    old = Group(published.OLD, "vllm", "A100", "m", "fp16")
    kinds = {published.kind(one) for one in (row(GROUPS[0], 1.0), row(GROUPS[0], 1.0, needs="dp"), row(old, 1.0))}
    assert len(kinds) == 3


def fp4(concurrency: int, **more: str) -> Row:
    case = {"mode": "serve", "gpu": "B200", "isl": 922.0, "concurrency": concurrency, "needs": "", **more}
    return Row("r", Group("s", "sglang", "B200", "DeepSeek-R1", "fp4"), case, {"ttft_ms": 1.0}, "")


def test_runs_whose_first_prompts_are_cut_and_compile_are_apart() -> None:
    assert [fp4(n).compiles for n in (4, 16, 32, 128)] == [False, False, True, True]
    assert not fp4(32, version="0.5.9").compiles
    assert published.kind(fp4(32)) == "sglang (compiles in its first requests)"


def line(table: str, load: int, ttft: float, tpot: float, **more: str) -> dict[str, str]:
    place = dict.fromkeys([*PLACE, "doubt"], "") | {"concurrency": str(load)}
    return place | {"url": f"x id={table}_1024x1024_c{load}_tp8_7", "ttft_ms": str(ttft), "tpot_ms": str(tpot)} | more


def test_a_series_drafts_where_all_its_twins_show_sooner_tokens_and_later_first_ones() -> None:
    plain = [line("a", n, 100.0, 10.0) for n in (4, 8, 16, 32, 64)]
    drafts = [line("b", n, 120.0, 8.0) for n in (4, 8, 16, 32, 64, 128)]
    assert drafting([*plain, *drafts]) == {series(drafts[0])} == {"b_tp8"}
    assert not drafting([*plain[:4], *drafts])  # too few twins
    assert not drafting([*plain, *drafts[:4], line("b", 64, 90.0, 8.0)])  # one twin is a faster server
    assert not drafting([*plain, *(line("b", n, 100.0, 10.0) for n in (4, 8, 16, 32, 64))])  # the same runs twice
    assert not drafting([*plain, *(one | {"doubt": "artefact of the table"} for one in drafts)])


def test_beside_other_splits_of_experts_a_series_drafts_where_its_gain_falls_with_the_load() -> None:
    loads = (4, 8, 16, 32, 64, 128)
    split = [line("a", n, 100.0, 10.0, ep="4") for n in loads]
    drafts = [line("b", n, 120.0, 10.0 / (1.5 - 0.1 * i), ep="1") for i, n in enumerate(loads)]
    assert drafting([*split, *drafts]) == {"b_tp8"}
    assert not drafting([*split, *(line("b", n, 120.0, 10.0 / 1.3, ep="1") for n in loads)])  # alike at all: no drafts
    assert not drafting([*split, *(one | {"ttft_ms": "90.0"} for one in drafts)])  # a faster server


@pytest.mark.skipif(not (corpus() / "serving").is_dir(), reason="the corpus is not here")
def test_runs_of_a_series_that_drafts_are_asked_so_and_apart() -> None:
    drafted = [row for row in read(corpus()) if "speculative" in row.case]
    assert {(row.group.gpu, row.group.model, row.group.precision, row.case["tp"]) for row in drafted} == {
        ("B200", "DeepSeek-R1", "fp8", 8),
        ("B200", "Qwen3.5-397B-A17B", "fp8", 4),
    }
    assert {published.kind(row) for row in drafted} == {"sglang (drafts and does not say so)"}


@pytest.mark.skipif(not (corpus() / "serving").is_dir(), reason="the corpus is not here")
def test_rows_of_families_read_since_count_apart_with_a_card_of_their_precision() -> None:
    kinds = {(row.group.model, row.group.precision): published.kind(row) for row in read(corpus()) if row.needs}
    assert kinds["MiniMax-M2.5", "fp8"] == "vllm (families read since)"
    assert kinds["GLM-5", "fp4"] == "sglang (families read since)"  # its card is made from that in FP8
    assert kinds["Qwen3.5-397B-A17B", "fp8"] == kinds["GLM-5", "fp4"]  # and these from that in 16 bits
    assert kinds["Qwen3.5-397B-A17B", "fp4"] == kinds["GLM-5", "fp4"]


@pytest.mark.skipif(not (corpus() / "serving").is_dir(), reason="the corpus is not here")
def test_cards_made_from_others_hold_what_their_makers_quantise() -> None:
    """Experts always; scans and shared experts in blocks of FP8, none of them in NVFP4; a scan's gates never."""
    of = {row.group.precision: load(row.case["model"]) for row in read(corpus()) if "Qwen3.5" in row.group.model}
    assert {p: model.layers[0].moes[0].precision.dtype for p, model in of.items()} == {
        "bf16": "bf16",
        "fp8": "fp8_block",
        "fp4": "nvfp4",
    }
    for precision, model in of.items():
        scanned, attended, dense = model.layers[0], model.layers[3], "fp8_block" if precision == "fp8" else "bf16"
        scan, whole, shared = scanned.mixers[0], attended.mixers[0], scanned.moes[0].shared
        assert isinstance(scan, Recurrent) and isinstance(whole, Gqa) and shared is not None
        assert [one.precision.dtype for one in scan.inputs] == [dense, "bf16"]
        assert whole.qkv.precision.dtype == shared.up.precision.dtype == scan.outputs[0].precision.dtype == dense


def test_a_whole_version_is_left_out_of_the_groups_that_hold_others() -> None:
    """A group whose rows are of two versions counts with the rows that are kept."""
    old, new = (replace(row(GROUPS[0], 1.0), case={"version": version}) for version in ("0.11.0", "0.19.1"))
    with ThreadPoolExecutor(1) as pool:
        search = published_fit.Search([replace(one, case=one.case | {"engine": "vllm"}) for one in (old, new)], pool)
    first, second = (1.0,) * 5, (2.0,) * 5
    search.tried = {first: pairs(0.0, 1.0), second: pairs(1.0, 0.0)}
    assert search.left_out(PARTS["version"]) == {"0.11": second, "0.19": first}
    assert search.by_group(first, np.array([False, True])) == pytest.approx([1.0])
    assert search.scored(search.left_out(PARTS["version"]), PARTS["version"]) == [1.0, 1.0]
    search.tried[first] = np.array([[0.2, math.nan], [0.4, 0.1]])  # a row without TPOT counts with its TTFT
    assert search.by_group(first) == pytest.approx([(0.2 + 0.25) / 2])
    assert search.scored({"vllm": first}, lambda row: row.group.engine) == pytest.approx([0.3, 0.1])


def test_an_error_is_counted_and_named() -> None:
    found = {"id": "r", "error": {"code": "does_not_fit", "field": "gpu", "message": "too large"}}
    group = published.by_group([row(GROUPS[0], 1.0)], [found])[0]
    assert (group["in error"], group["why"]) == (1, ["too large"])


def pairs(*errors: float) -> NDArray[np.float64]:
    """The same error of TTFT and TPOT, a row each."""
    return np.array([[error, error] for error in errors])


def test_no_group_is_scored_with_constants_of_its_own() -> None:
    # The first group alone would choose the first set; all others choose the second.
    base = tuple(values[0] for values in published_fit.GRID.values())
    first, second = base, (*base[:1], 2 * base[1], *base[2:])
    with ThreadPoolExecutor(1) as pool:
        search = published_fit.Search([row(group, 1.0) for group in GROUPS], pool)
    search.tried = {first: pairs(0.0, 1.0, 1.0, 1.0), second: pairs(1.0, 0.0, 0.0, 0.0)}
    assert list(search.left_out(PARTS["group"]).values()) == [second] * 4
    # Without the GPU or the version of the first row the second set is chosen, too; all rows are of one version.
    assert set(search.left_out(PARTS["gpu"]).values()) == {second}
    assert search.left_out(PARTS["version"]) == {"not named": search.chosen()}


def test_of_sets_within_one_standard_error_the_fastest_front_end_is_taken() -> None:
    """A front end that is too slow saturates where its own group is not asked; one too fast costs little."""
    names = list(published_fit.GRID)
    fast = tuple(values[0] for values in published_fit.GRID.values())
    slow = tuple(10 * value if name == "stream_us" else value for name, value in zip(names, fast, strict=True))
    with ThreadPoolExecutor(1) as pool:
        search = published_fit.Search([row(group, 1.0) for group in GROUPS], pool)
    search.tried = {slow: pairs(0.1, 0.1, 0.1, 0.1), fast: pairs(0.09, 0.14, 0.1, 0.1)}
    assert search.chosen() == fast
    search.tried[fast] = pairs(0.02, 0.19, 0.1, 0.1)  # alike on the whole, but one group waits for the front end
    assert search.chosen() == slow
    search.tried[fast] = pairs(0.2, 0.21, 0.2, 0.21)
    assert search.chosen() == slow


def test_the_search_finds_a_least_error_along_each_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    aim = tuple(values[-1] for values in published_fit.GRID.values())
    monkeypatch.setattr(
        published_fit, "_errors", lambda asked: [sum(abs(a - b) / b for a, b in zip(asked[1], aim, strict=True))] * 2
    )
    with ThreadPoolExecutor(2) as pool:
        search = published_fit.Search([row(group, 1.0) for group in GROUPS], pool)
        assert search.run(tuple(values[0] for values in published_fit.GRID.values())) == aim


def test_a_measured_constant_is_not_fitted() -> None:
    assert "stream_us" in published_fit.grid("vllm")
    assert "stream_us" not in published_fit.grid("sglang")
    fitted = tuple(values[-1] for values in published_fit.grid("sglang").values())
    changed = published_fit.with_constants("sglang", fitted)
    assert changed.stream_us == front.of("sglang").stream_us
    assert changed.message_us == fitted[-1]


def test_the_cost_of_streaming_is_read_off_its_points() -> None:
    base, more = stream_cost.law([(sent, 40.0 + 0.02 * sent, 1.0) for sent in range(50, 1000, 100)])
    assert (base, more) == pytest.approx((40.0, 20.0))


def test_what_ships_of_streaming_is_what_was_measured() -> None:
    kept = json.loads(stream_cost.RESULTS.read_text("utf-8"))
    ships = front.of("sglang")
    assert (ships.stream_us, ships.copied_us) == pytest.approx((kept["stream_us"], kept["copied_us"]), abs=0.5)
    assert (np.array(kept["points"])[:, 2] == 1.0).all()  # no token waited to be sent with another


def test_a_rate_beyond_the_peak_of_its_gpus_is_seen() -> None:
    case = {"mode": "serve", "model": "Llama-3.1-8B", "gpu": "H100", "isl": 4000, "osl": 100, "concurrency": 64}
    slow, fast = (Row("r", GROUPS[0], case, {"ttft_ms": ms, "tpot_ms": ms / 50}, "") for ms in (5000.0, 50.0))
    assert of_peak(slow) < 1.0 < of_peak(fast)
    assert of_peak(replace(fast, case=case | {"tp": 64})) == pytest.approx(of_peak(fast) / 64)


def test_a_half_width_holds_nine_in_ten_of_other_groups() -> None:
    points = [published_cover.Point(group, "ttft_ms", 0.01 * i, 0.0) for group in GROUPS for i in range(1, 101)]
    assert published_cover.quantile(points, 0.9) == pytest.approx(0.9, abs=0.011)
    assert published_cover.coverage(points, 0.9) == pytest.approx(0.9, abs=0.011)
    assert published_cover.level(points) == pytest.approx(0.9)


def test_groups_that_differ_need_more_than_nine_in_ten_of_the_others() -> None:
    points = [
        published_cover.Point(g, "ttft_ms", 0.05 * k + 0.01 * i, 0.0) for k, g in enumerate(GROUPS) for i in range(50)
    ]
    assert published_cover.coverage(points, 0.9) < 0.9
    assert published_cover.level(points) > 0.9


def test_what_is_known_of_a_row_is_not_asked_of_its_server() -> None:
    assert published_cover.Point(GROUPS[0], "ttft_ms", 0.5, 0.3).needed == pytest.approx(0.4)
    assert published_cover.Point(GROUPS[0], "ttft_ms", 0.2, 0.3).needed == 0.0


def test_generated_pools_are_a_kind_of_their_own_and_count_with_all() -> None:
    """Nothing tells their workers; the sum over all groups still holds them."""
    made = Group(published_rows.GENERATED, "vllm", "H100", "m", "fp8")
    rows = [
        row(GROUPS[0], 100.0, needs="disaggregated"),
        replace(row(made, 100.0, needs="disaggregated"), day="2026-03-07"),
    ]
    groups = published.by_group(rows, [answer(110.0), answer(190.0)])
    assert {group["kind"] for group in groups} == {
        "vllm (disaggregated)",
        "vllm (disaggregated, workers not given)",
    }
    assert published.means(groups)["ttft_ms"]["mape"] == pytest.approx((10 + 90) / 2)


def test_deployments_whose_workers_are_not_given_are_apart() -> None:
    made = replace(GROUPS[0], source="NVIDIA AIC own runs (silicon_sample)")
    assert not row(made, 1.0).apart
    generated = row(made, 1.0, day="2026-03-07")
    assert "workers" in generated.apart
    assert published.kind(generated) != published.kind(row(made, 1.0))
    assert not published_fit.chosen_rows([generated] * 5, 3)


def test_rows_whose_card_is_made_here_fit_no_constant() -> None:
    plain = row(GROUPS[0], 100.0)
    ours = replace(plain, case=plain.case | {"model": str(published_rows.CARDS / "Qwen--Qwen3.5-397B-A17B-fp8")})
    assert ours.made and not plain.made
    assert published_fit.chosen_rows([plain] * 5, 3)
    assert not published_fit.chosen_rows([ours] * 5, 3)


@pytest.mark.skipif(not (corpus() / "serving" / "rows.csv").exists(), reason="needs the corpus")
def test_the_corpus_reads_into_cases() -> None:
    from pipewave.published.cases import from_dict

    rows = read(corpus())
    assert len(rows) > 3000
    for one in rows[::40]:
        case = from_dict(one.case)
        assert case.traffic().longest >= case.isl
        assert one.measured


@pytest.mark.skipif(not (corpus() / "serving").is_dir(), reason="the corpus is not here")
def test_a_cache_that_a_launch_set_in_a_file_it_did_not_read_is_not_asked() -> None:
    """Two H100s held no more of the published requests than a cache of 16 bits does."""
    dense = [one for one in read(corpus()) if one.group.model == "Llama-3.1-70B" and one.group.engine == "vllm"]
    named = {gpu: {one.case.get("kv_dtype") for one in dense if one.group.gpu == gpu} for gpu in ("H100", "H200")}
    assert named == {"H100": {None}, "H200": {"fp8"}}


def test_a_static_batch_faster_than_its_weights_can_be_read_counts_apart() -> None:
    """16 GB read 100 times at 3.35 TB/s take 0.48 s, whatever the batch."""
    case = {"mode": "estimate", "model": "Llama-3.1-8B", "gpu": "H100", "isl": 100, "osl": 100, "concurrency": 8}
    group = replace(GROUPS[0], precision="bf16")
    slow, fast = (Row("r", group, case, {"e2e_ms": ms}, "") for ms in (600.0, 300.0))
    assert of_reading(slow) < 1.0 < of_reading(fast)
    assert (slow.apart, fast.apart) == ("", "beyond the GPUs it names")
    assert of_reading(replace(fast, case=case | {"tp": 4})) == pytest.approx(of_reading(fast) / 4)


def test_scores_and_their_fits_need_no_package_of_training() -> None:
    """`make test` runs without scipy and torch; where all stages share an environment nothing else would tell."""
    code = "import sys; sys.modules.update(scipy=None, torch=None); import train.published_cover, train.published_fit"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])

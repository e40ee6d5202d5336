"""The report of the MoE loop, on made-up times whose figures are known, and on the committed rows."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from studies.moe_loop import figures, layers, page, report

SHAPES = [row["shape"] for row in layers.read(report.ROWS)]


def way(first: float, second: float, rest: float, names: tuple[str, str]) -> dict[str, Any]:
    kernels = [["moe_align", rest], [names[0], first], [names[1], second]]
    return {"us": first + second + rest, "kernels": kernels}


def made(scale: float, index: int) -> dict[str, Any]:
    """A layer that vLLM runs in 1000 · scale µs, its kernel tuned in 800 · scale, ours in 500 µs."""
    shape = SHAPES[index]
    counts = [shape["m"] * shape["top_k"] // shape["e"]] * shape["e"]
    counts[0] += shape["m"] * shape["top_k"] - sum(counts)
    grouped = ("fused_moe_kernel", "fused_moe_kernel")
    return {"shape": shape, "few": False, "counts": counts, "errors": {"ours_sorted": 0.003}, "exact": index % 2 == 0,
            "ways": {"vllm_default": way(600 * scale, 300 * scale, 100 * scale, grouped),
                     "vllm_tuned": way(500 * scale, 200 * scale, 100 * scale, grouped),
                     "ours_sorted": way(300, 150, 50, ("up", "down"))}}  # fmt: skip


def test_figures_of_a_known_loop() -> None:
    of = layers.join([made(1.0, 3), made(4.0, 17)])
    found = figures.summary(of)["groups"]
    assert found["all"]["over_default"]["ours"]["geomean"] == pytest.approx(math.sqrt(2.0 * 8.0))
    assert found["all"]["over_default"]["ours"]["max"] == pytest.approx(8.0)
    assert found["all"]["products"]["min"] == pytest.approx(2.0)
    assert found["all"]["over_served"]["tuned"]["median"] == pytest.approx(1.25)
    assert all(layer.flagged == (layer.served > layer.ceiling) for layer in of)
    assert sum(found[name]["layers"] for name in ("flagged", "not flagged") if name in found) == 2


def test_a_file_of_vllm_is_what_it_serves_with() -> None:
    row = made(1.0, 3)
    row["ways"]["vllm_file"] = row["ways"]["vllm_tuned"]
    layer = layers.join([row])[0]
    assert (layer.served, layer.default, layer.file) == (800.0, 1000.0, 800.0)


def test_ours_is_the_path_the_rule_takes_and_what_the_other_would_win_is_told() -> None:
    row = made(1.0, 3)
    row["ways"]["ours_few"] = way(200, 100, 100, ("few_up", "few_down"))
    slow = layers.join([row])
    assert (slow[0].ours, slow[0].other, slow[0].oracle) == (500.0, 400.0, 400.0)
    assert figures.few_path(slow) == {"timed_both": 1, "taken": 0, "mean_loss": 0.25, "worst_loss": 0.25, "lose": 1}
    row["few"], row["errors"]["ours_few"] = True, 0.001
    assert figures.few_path(layers.join([row]))["lose"] == 0


def test_a_layer_counts_as_slower_beyond_the_noise() -> None:
    found = figures.group(layers.join([made(0.495, 3), made(0.45, 5)]))["over_default"]["ours"]
    assert (found["slower"], found["min"]) == (1, pytest.approx(0.9))


def test_gain_follows_the_gap_where_it_does() -> None:
    of = layers.join([made(scale, 5) for scale in (1.0, 2.0, 4.0, 8.0)])
    assert figures.separation(of)["ours"]["gap"] == pytest.approx(1.0)
    assert figures.separation(of)["ours"]["gap_rank"] == pytest.approx(1.0)
    assert figures.separation(of)["ours"]["flag"] is None  # all are flagged


@pytest.mark.slow
def test_shares_of_the_time_add_up_and_no_layer_beats_the_card() -> None:
    found = figures.shares(layers.join([made(1.0, 3), made(2.0, 3)]))
    assert found["default_parts"] == pytest.approx({"activation": 0.0, "sort": 0.1, "sum": 0.0, "products": 0.9})
    assert sum(found["our_parts"].values()) == pytest.approx((0.5 + 0.25) / 2)
    assert all(figures.least_us(layer) < layer.ours for layer in layers.join(layers.read(report.ROWS)))


def test_errors_are_told_apart_by_what_they_are_against() -> None:
    found = figures.errors(layers.join([made(1.0, 3), made(1.0, 4), made(1.0, 6)]))
    assert found == {"exact_layers": 2, "exact": 0.003, "against_vllm": 0.003}


def test_the_page_has_a_line_for_every_group_and_no_nan() -> None:
    found = figures.summary(layers.join([made(1.0 + i % 3, i) for i in range(28)]))
    text = page.markdown(found)
    assert text.count("[start:") == text.count("[end:") == 5
    assert all(text.count(f"| {name} |") >= 2 for name in found["tokens"])
    assert "nan" not in text


def test_the_committed_rows_are_the_list_and_are_right_to_a_hundredth() -> None:
    rows = layers.read(report.ROWS)
    assert len({json.dumps(row["shape"]) for row in rows}) == len(rows) >= 300
    assert all(error < 1e-2 for row in rows for error in row["errors"].values())
    assert all(abs(sum(us for _, us in w["kernels"]) / w["us"] - 1) < 0.02 for r in rows for w in r["ways"].values())


def test_the_committed_report_lists_every_layer_with_its_flag() -> None:
    kept = json.loads(report.RESULT.read_text())
    flags = [layer["flagged"] for layer in kept["layers"]]
    assert len(flags) == len(SHAPES)
    assert sum(flags) == kept["summary"]["groups"]["flagged"]["layers"]
    assert report.TABLES.read_text() == page.markdown(kept["summary"])

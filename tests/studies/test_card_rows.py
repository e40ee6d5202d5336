"""Data sets of cards: which row stands for a call, and what second measurements differ by."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.tools.card_noise import cold, paired, table
from lab.card_rows import Sources, assemble
from lab.ragged_plans import plan
from pipewave.files import store
from pipewave.measure.row_files import clock_mhz, environments, rows
from studies.card_blind import DATA, PARTS, RESULTS, name, phase, usable

pytestmark = pytest.mark.slow  # whole data sets

H200, H100 = DATA / "h200", DATA / "h100"


def written(path: Path, *made: dict[str, Any]) -> Path:
    with store.Store(path) as kept:
        kept.append({"t": "env", "id": "e"})
        for row in made:
            kept.append({"t": "row", "stack": "torch-2.11", "env": "e", "status": "ok"} | row)
    return path


def row(key: str, latency_us: float, **more: Any) -> dict[str, Any]:
    case = {"kernel": "gemm", "m": 8, "n": 16, "k": 32, "dtype": "bf16"}
    return {"key": key, "case": case, "impl": "cublas", "protocol": "cold", "latency_us": latency_us} | more


def test_rested_rows_stand_for_their_calls_and_earlier_ones_are_kept_apart(tmp_path: Path) -> None:
    failed = row("c", 0.0, status="failed", reason="out of memory")
    loaded = written(tmp_path / "old", row("a", 12.0), row("g", 9.0, protocol="graph"), row("f", 11.0, flush="read"))
    rested = written(tmp_path / "new", row("a", 10.0), row("r", 10.4, repeat=1), failed)
    elsewhere = written(tmp_path / "other", row("r", 10.6, repeat=1))
    repeats = [("same_card", rested), ("other_card", elsewhere)]
    assemble(tmp_path / "h200", Sources([rested], [loaded], repeats=repeats))
    first = {one["key"]: one["latency_us"] for one in rows(tmp_path / "h200")}
    assert first == {"a": 10.0, "g": 9.0, "f": 11.0}
    assert [one["latency_us"] for one in rows(tmp_path / "h200" / "loaded")] == [12.0]
    found = table(tmp_path / "h200")
    assert found[0]["again"] == "4.0 % (1)"
    assert found[0]["another card"] == "6.0 % (1)"
    assert found[0]["another run, loaded"] == "20.0 % (1)"


def test_pairs_know_whether_their_clocks_agree() -> None:
    spin = {"spin_clocks": 40_000}
    first = [row("a", 10.0, spin_us=21.0, **spin), row("b", 20.0, flush="read")]
    for spin_us, same in ((21.2, True), (25.0, False)):
        (pair,) = paired(cold(first), cold([row("x", 11.0, repeat=1, spin_us=spin_us, **spin)]))["gemm bf16"]
        assert pair.difference == pytest.approx(0.1)
        assert pair.one_clock is same


def test_the_shipped_set_was_taken_rested_and_again() -> None:
    first, again = cold(rows(H200)), cold(rows(H200 / "repeats" / "same_card"))
    assert sum(bool(one.get("throttled")) for one in first.values()) < 0.02 * len(first)
    assert len(first) > 25_000
    assert again.keys() <= first.keys()
    assert len(again) >= 450


def test_the_h100_set_holds_the_calls_of_the_h200_set() -> None:
    ours, theirs = cold(rows(H100)), cold(rows(H200))
    assert len(ours) > 25_000
    assert sum(bool(one.get("throttled")) for one in ours.values()) < 0.02 * len(ours)
    assert all(one["n"] >= 7 and one["spin_us"] > 0 for one in ours.values())
    # Collectives need two cards; the stack has tuned files of other expert layers here, beside which its default stands.
    alone = {key for key, one in theirs.items() if "world" not in one["case"] and one["impl"] != "triton_default"}
    assert alone <= ours.keys()
    assert {one["gpu"] for one in environments(H100).values()} == {"NVIDIA H100 80GB HBM3"}
    assert len(cold(rows(H100 / "repeats" / "other_machine")).keys() & ours.keys()) == 6000


@pytest.mark.parametrize("card", [H100, H200])
def test_ragged_batches_say_where_their_pages_lay(card: Path) -> None:
    found = rows(card / "ragged")
    assert {one["key"] for one in found} == {job.key for job in plan("ragged")}
    places: dict[str, dict[str, float]] = {}
    for one in found:
        call = json.dumps(one["case"], sort_keys=True)
        places.setdefault(call, {})[one.get("pages", "random")] = one["latency_us"]
    every = [times for times in places.values() if len(times) == 3]
    assert len(every) > 100
    assert all(max(times.values()) < 2 * min(times.values()) for times in every)


@pytest.mark.parametrize(("card", "folder"), [(card, plan) for card in (H100, H200) for plan in ("mixed", "experts")])
def test_plans_of_one_family_hold_their_own_calls(card: Path, folder: str) -> None:
    planned = {job.key for job in plan(folder)}
    measured = {one["key"] for one in rows(card / folder)}
    assert measured <= planned
    assert len(measured) > 0.9 * len(planned)


def test_the_clock_of_a_row_counts_what_a_spin_costs_on_its_card() -> None:
    """A norm leaves the card at its highest clock, 1,980 MHz on both."""
    for card in (H100, H200):
        norms = [clock_mhz(one) for one in rows(card / "rmsnorm.json.gz") if one.get("spin_us")]
        assert float(np.median([clock for clock in norms if clock])) == pytest.approx(1980, rel=0.003)


@pytest.mark.parametrize("card", ["H100", "H200"])
def test_blind_figures_are_of_every_new_row(card: str) -> None:
    found = json.loads((RESULTS / f"blind_{card.lower()}.json").read_text())
    groups = Counter(name(row, part) for part in PARTS[card] for row in usable(rows(DATA / card.lower() / part)))
    assert {one["family"]: int(one["rows"].replace(",", "")) for one in found["rows"]} == groups
    assert all(one["below floor"] == "0" for one in found["rows"])


def test_phases_of_attention_by_what_requests_add_and_hold() -> None:
    cases = {
        "decode": ([1, 1], [9, 5]),
        "prefill": ([4, 7], [4, 7]),
        "chunked": ([4, 7], [9, 9]),
        "mixed": ([1, 7], [9, 9]),
    }
    assert {phase({"q_lens": q, "kv_lens": kv}): (q, kv) for q, kv in cases.values()} == cases

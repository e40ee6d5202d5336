"""The H200 data set: which row stands for a call, and what second measurements differ by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.h200_noise import cold, paired, table
from bench.h200_rows import assemble
from pipewave.files import store
from pipewave.measure.pack import rows

DATA = Path(__file__).resolve().parents[2] / "data" / "measured" / "h200"


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
    assemble(tmp_path / "h200", [rested], [loaded], repeats)
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
    first, again = cold(rows(DATA)), cold(rows(DATA / "repeats" / "same_card"))
    assert sum(bool(one.get("throttled")) for one in first.values()) < 0.02 * len(first)
    assert len(first) > 25_000
    assert again.keys() <= first.keys()
    assert len(again) >= 450

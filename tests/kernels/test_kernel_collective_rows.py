"""Our own collectives as training sees them: waits for late ranks taken out, the rest untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

import pipewave as pw  # noqa: E402
from corpus import own_files  # noqa: E402
from pipewave.measure.row_files import WAITED  # noqa: E402
from train.nets.collective import _fastest, started_together  # noqa: E402

pytestmark = pytest.mark.skipif(not any(own_files("all_gather")), reason="no measured collectives")


def _frame(late: float, source: str = "h200") -> pd.DataFrame:
    """Every all-gather of two ranks, its latency `late` times what the fastest rank took."""
    fastest = {key: us for key, us in _fastest(("all_gather",)).items() if key[3] == 2}
    rows = [
        {"op": op, "impl": i, "bytes": b, "world": w, "latency_us": late * us}
        for (op, i, b, w, _), us in fastest.items()
    ]
    return pd.DataFrame(rows).assign(source=source)


def test_ranks_on_time_keep_their_latency() -> None:
    frame = _frame(0.99 / WAITED)
    assert (started_together(frame)["latency_us"] == frame["latency_us"]).all()


def test_waiting_is_taken_out_down_to_a_little_above_the_fastest_rank() -> None:
    frame, alone = _frame(10.0), _frame(1.0)
    found = started_together(frame)["latency_us"] / alone["latency_us"]
    assert found.between(1.0, 1.2).all()


def test_other_sources_are_left_alone() -> None:
    frame = _frame(10.0, source="vidur")
    assert (started_together(frame)["latency_us"] == frame["latency_us"]).all()


def test_corrected_latencies_rise_with_size() -> None:
    """What the slowest ranks reported jumps by ten times from one size to the next; the corrected series must not."""
    frame = started_together(_frame(10.0)).sort_values("bytes")
    steps = np.diff(np.log(frame["latency_us"].to_numpy()))
    assert steps.min() > -0.25
    assert steps.max() < 0.6


def test_a_pair_of_a40_sends_as_slowly_as_its_rows(corpus: Path) -> None:
    """A seventh of what PCIe carries: Vidur's rows of one host, from 4 MiB, with the slower rank's time."""
    table = pd.read_parquet(corpus / "vidur" / "profiling" / "network" / "a40_pairwise_nvlink" / "send_recv.parquet")
    table = table[(table["num_workers"] == 2) & (table["devices_per_node"] == 2) & (table["size"] >= 1 << 22)]
    slower = table.groupby("size")["time_stats.send_recv.median"].max() * 1e3
    calls = [pw.send_recv(int(size), 2) for size in slower.index]
    ratio = pw.predict(calls, "A40", protocol="profiler_warm").latency_us / slower.to_numpy()
    assert 0.5 < np.median(ratio) < 1.5  # a fourth where the pair is taken to send at the rate of its link

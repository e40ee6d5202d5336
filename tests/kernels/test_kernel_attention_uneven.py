"""Decode batches whose caches differ more than those of measured rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.errors import PipewaveError
from pipewave.kernels.attention.decode import _evened
from pipewave.kernels.attention.tasks import ONLY, Requests

ROWS = Path(os.environ.get("PIPEWAVE_DATA", "../shared/data")) / "pipeweave" / "worst_cases"
TILES = st.lists(st.integers(1, 2000), min_size=1, max_size=40)


def _decode(kv_lens: list[int]) -> pw.Call:
    return pw.attention([1] * len(kv_lens), kv_lens, 32, 8, page_size=16)


@given(TILES, st.sampled_from([1.0, 2.0]))
def test_lengths_are_evened_as_far_as_asked_and_no_further(tiles: list[int], most: float) -> None:
    lengths = np.array(tiles, float)
    requests = Requests(lengths, lengths, None, float(len(tiles)), ONLY, None)
    evened = _evened(lengths, requests, most)
    assert evened.sum() == pytest.approx(lengths.sum())
    assert evened.max() <= max(most * lengths.mean(), lengths.mean()) * (1 + 1e-6)
    assert (np.diff(evened[np.argsort(lengths, kind="stable")]) >= -1e-9).all()
    if lengths.max() <= most * lengths.mean():
        assert evened is lengths


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "L40S", "B200"])
@pytest.mark.parametrize("protocol", ["cold", "serving", "graph"])
@pytest.mark.parametrize("requests", [64, 256])
def test_a_full_gpu_takes_a_skewed_batch_hardly_longer_than_an_even_one(gpu: str, protocol: str, requests: int) -> None:
    share = (np.arange(requests) + 0.5) / requests
    skewed = [int(16_000 * x**7) + 1 for x in share]  # the longest is eight times the mean
    even = [sum(skewed) // requests] * requests
    ragged, level = (pw.predict(_decode(lengths), gpu, protocol=protocol) for lengths in (skewed, even))
    assert 0.9 < ragged.latency_us / level.latency_us < 1.6
    assert ragged.floor_us == pytest.approx(level.floor_us, rel=0.01)


@pytest.mark.parametrize("protocol", ["serving", "graph"])
def test_a_batch_takes_nearly_as_long_as_its_longest_request_alone(protocol: str) -> None:
    for gpu in ("A100", "H200", "B200"):
        alone = pw.predict(_decode([100_000]), gpu, protocol=protocol).latency_us
        among = pw.predict(_decode([100_000] + [16] * 31), gpu, protocol=protocol).latency_us
        assert among > 0.7 * alone


@pytest.mark.skipif(not ROWS.exists(), reason="the corpus is not here")
def test_measured_skewed_batches_are_met() -> None:
    pd = pytest.importorskip("pandas")
    errors = []
    for row in pd.concat(pd.read_parquet(path) for path in sorted(ROWS.glob("attn__*.parquet"))).itertuples():
        lengths = json.loads(row.kv_lengths)
        if max(json.loads(row.q_lengths)) > 1 or len(lengths) < 6 or max(lengths) < 2 * np.mean(lengths):
            continue
        try:
            gpu = pw.find(row.hardware.removesuffix(" Generation"))
        except PipewaveError:
            continue
        call = pw.attention([1] * len(lengths), lengths, row.nh, row.nkv, head_dim=row.hd)
        errors.append(pw.predict(call, gpu, protocol="graph").latency_us / row.avg_duration - 1)
    assert len(errors) > 20
    assert np.mean(np.abs(errors)) < 0.4

"""AITER's tables as rows: fastest of each shape, impossible ones left out, errors as committed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from corpus import aiter
from corpus.sources import data_dir
from docs.tools.training_tables import GENERATED, corrections
from pipewave.calibrate.fit import Sample, fit
from pipewave.gpus import find
from pipewave.nets.calibration.correction import Correction
from pipewave.physics.demand import Array
from train import amd

needs_corpus = pytest.mark.skipif(not (data_dir() / "aiter_amd").is_dir(), reason="needs the public corpus")


def test_rows_above_a_parts_rates_are_left_out() -> None:
    table = pd.DataFrame({"m": [4096.0] * 2, "n": [4096.0] * 2, "k": [4096.0] * 2, "dtype": ["bf16"] * 2})
    least_us = 1e6 * 2 * 4096**3 / find("MI300X").peak_flops("bf16", at="boost")
    kept = aiter.possible(table.assign(us=[0.99 * least_us, 1.01 * least_us]), find("MI300X"))
    assert list(kept.us) == [1.01 * least_us]


def test_experts_that_no_memory_could_have_read_are_left_out() -> None:
    row = {"tokens": 8192.0, "hidden": 4096.0, "inter": 1536.0, "experts": 128.0, "topk": 1.0, "dtype": "bf16"}
    weights_us = 1e-3 * 128 * 3 * 4096 * 1536 * 2 / find("MI355X").dram_peak_gbps
    table = pd.DataFrame([row, row]).assign(us=[0.9 * weights_us, 1.1 * weights_us])
    assert len(aiter.possible(table, find("MI355X"))) == 1


def test_thinning_keeps_both_ends_of_every_product() -> None:
    table = pd.DataFrame({"n": np.repeat([1, 2], 500), "m": np.tile(np.arange(1.0, 501.0), 2)})
    kept = aiter.thinned(table, ["n"], "m")
    assert kept.groupby("n").m.agg(["min", "max"]).to_numpy().tolist() == [[1.0, 500.0]] * 2
    assert kept.groupby("n").size().max() <= aiter.MOST_ROWS


def test_the_page_shows_the_committed_results() -> None:
    assert (GENERATED / "amd.md").read_text() == corrections(json.loads(amd.OUT.read_text()))


@needs_corpus
def test_tables_hold_the_types_and_parts_that_the_corpus_lists() -> None:
    gemms, experts = aiter.gemms(), aiter.experts()
    assert {"bf16", "fp8", "fp8_block", "mxfp4", "int8"} == set(gemms.dtype)
    assert {"bf16", "fp8", "fp8_block", "mxfp4", "int4"} == set(experts.dtype)
    assert (gemms.us > 0).all() and (experts.us > 0).all()
    assert not gemms.duplicated(["gfx", "cu_num", "dtype", "m", "n", "k"]).any()
    for gfx, units in aiter.PARTS:
        assert ((gemms.gfx == gfx) & (gemms.cu_num == units)).sum() > 1000


def test_larger_calls_are_slower_under_a_correction_in_order_and_rows_keep_their_answers() -> None:
    """Rows that take less time where they are larger, for a while; physics alone says more."""
    size = np.linspace(0.0, 4.0, 81)
    wave = 0.4 * np.sin(3.0 * size) + np.random.default_rng(0).normal(0.0, 0.1, 81)
    rows = Sample(("size",), size[:, None], wave, np.full(81, 0.1), np.arange(81) // 4, frozenset())
    found = fit(rows).correction
    assert found is not None
    at = np.stack([size[:-4], size[4:]], 1).reshape(-1)
    pairs = Sample(("size",), at[:, None], -0.5 * at, np.ones(len(at)), np.zeros(len(at), int), frozenset())

    def ahead(one: Correction) -> Array:
        step, before = amd._steps(one, pairs)
        return before + step @ one.weights

    ordered = amd.in_order(found, [pairs])
    assert (ahead(found) < -0.02).mean() > 0.1
    assert (ahead(ordered) < -0.02).mean() < 0.25 * (ahead(found) < -0.02).mean()
    assert np.abs(ordered.at(found.points) - found.at(found.points)).mean() < 0.15


def test_pairs_are_drawn_of_every_gpu_of_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd, "CONTEXTS", 2)
    found = amd.drawn_pairs("cdna3")
    assert all(len(sample) % 2 == 0 for samples in found.values() for sample in samples)
    assert {net for net, _ in found} & {"gemm", "gemm_fp8", "gemm_block", "fused_moe"}

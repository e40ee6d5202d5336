"""AITER's tables as rows: fastest of each shape, impossible ones left out, errors as committed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from corpus import aiter
from corpus.sources import data_dir
from docs.tools.training_tables import GENERATED, corrections
from pipewave.gpus import find
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

"""The published figures of the public corpus still hold; needs the corpus."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qa.accuracy import drifts, read, score

pytest.importorskip("pandas")
ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PIPEWAVE_DATA") or ROOT.parent / "shared" / "data")
if not DATA.is_absolute():
    DATA = ROOT / DATA


@pytest.mark.skipif(not (DATA / "aiconfigurator").is_dir(), reason="the public corpus is not here")
def test_published_figures_of_the_corpus_still_hold() -> None:
    from corpus.cases import held_out_rows

    published = read()["public"]
    assert drifts(published, score(held_out_rows(DATA))) == []

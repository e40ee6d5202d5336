"""`estimate` with drafts: agreement with `serve`, laws of acceptance, batches that wait."""

from __future__ import annotations

from typing import Any

import pytest

from pipewave.simulate import estimate
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of
from pipewave.simulate.traffic import synthetic
from tests.simulate.serving import serve

SIZES: dict[str, Any] = {"batch": 8, "input_len": 512, "output_len": 128}


def _tpot(how: str | None, **changes: Any) -> float:
    return estimate("Llama-3.1-8B", "H200", **(SIZES | changes), speculative=how).tpot_ms


@pytest.mark.parametrize("how", ["mtp,tokens=2,acceptance=0.8", "eagle3", "ngram"])
def test_it_agrees_with_serve(how: str) -> None:
    """Of a batch that starts together; serve's first steps hold prompts, so its median is compared."""
    traffic = synthetic(8, input_len=512, output_len=128)
    served = serve(Server.of("Llama-3.1-8B", "H200", Setup(speculative=of(how)), 640), traffic).answer
    assert _tpot(how) == pytest.approx(served["itl_p50_ms"], rel=0.03)


def test_accepted_drafts_pay_and_rejected_ones_cost() -> None:
    none, never, always = (_tpot(how) for how in (None, "ngram,acceptance=0", "ngram,acceptance=1"))
    assert always < none < never
    assert never / always == pytest.approx(4.0)  # the same step makes one token or four


def test_one_token_needs_no_drafts() -> None:
    plain, drafted = (
        estimate("Llama-3.1-8B", "H200", **(SIZES | {"output_len": 1}), speculative=how) for how in (None, "ngram")
    )
    assert plain.e2e_ms == drafted.e2e_ms


def test_a_batch_that_waits_drafts_too() -> None:
    sizes = {"batch": 200, "input_len": 2048, "output_len": 64}
    plain, drafted = (
        estimate("Llama-3.1-8B", "L40S", **sizes, speculative=how) for how in (None, "eagle3,acceptance=0.9")
    )
    assert drafted.tpot_ms < plain.tpot_ms and any("wait their turn" in note for note in drafted.notes)


@pytest.mark.parametrize("how", [None, "mtp,tokens=2", "eagle3", "ngram"])
def test_parts_of_memory_are_all_of_it(how: str | None) -> None:
    """What drafts caches too; n-grams take none."""
    memory = estimate("Llama-3.1-8B", "H200", **SIZES, speculative=how).memory_gib
    parts = ("weights", "activations", "engine", "kv", "drafts", "free")
    assert sum(memory.get(name, 0.0) for name in parts) == pytest.approx(memory["total"], abs=0.01)
    assert ("drafts" in memory) == (how not in (None, "ngram"))

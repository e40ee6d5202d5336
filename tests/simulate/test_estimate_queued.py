"""A batch that does not fit at once waits its turn: as `serve` has it, and never faster than what fits."""

from __future__ import annotations

import numpy as np
import pytest

from pipewave.errors import DoesNotFit
from pipewave.simulate import estimate
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from tests.simulate.serving import serve

ASKED = {"model": "Llama-3.1-8B", "gpu": "L40S", "input_len": 2048, "output_len": 128}


def test_what_waits_is_said_and_takes_longer() -> None:
    found = [estimate(batch=batch, **ASKED) for batch in (60, 120, 240, 480)]  # type: ignore[arg-type]
    waits = [any("wait their turn" in note for note in one.notes) for one in found]
    assert waits == [False, True, True, True]
    ends = [one.e2e_ms for one in found]
    assert ends == sorted(ends)
    rates = [one.output_tokens_per_s for one in found]
    assert max(rates) < 1.35 * min(rates)  # a full cache is full, however many wait
    for one in found:
        assert one.e2e_ms_low < one.e2e_ms < one.e2e_ms_high
        assert one.prefill_ms < one.e2e_ms
        assert one.memory_gib["kv_used"] <= one.memory_gib["kv"]


def test_it_is_what_serve_says_of_all_at_once() -> None:
    one = estimate(batch=200, **ASKED)  # type: ignore[arg-type]
    traffic = synthetic(200, input_len=2048, output_len=128)
    served = serve(Server.of("Llama-3.1-8B", "L40S", Setup(max_num_batched_tokens=8192), traffic.longest), traffic)
    record = served.record
    assert one.e2e_ms == pytest.approx(1e3 * float(np.max(record.done_s)), rel=0.1)
    assert one.prefill_ms == pytest.approx(1e3 * float(np.max(record.first_s)), rel=0.1)


def test_one_request_that_never_fits_is_an_error() -> None:
    with pytest.raises(DoesNotFit, match="KV cache"):
        estimate("Llama-3.1-8B", "L40S", batch=1, input_len=1 << 20, output_len=8)

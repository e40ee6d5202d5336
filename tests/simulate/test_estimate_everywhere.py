"""`estimate` for any built-in model on GPUs of five architectures: finite, ordered, monotone, or a typed error."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from pipewave.errors import CannotShard, DoesNotFit, PipewaveError, UnsupportedDtype
from pipewave.models.load import names
from pipewave.simulate import estimate
from pipewave.simulate.estimate import Estimate
from tests.sampled import examples

GPUS = ("H200", "A100", "L40S", "B200", "RTX 4090")
TIMES = ("prefill_ms", "tpot_ms", "e2e_ms")
SLACK = 1.05  # one row may take longer than a few: other kernels serve it, on real GPUs too (12.5 against 12.3 ms)
PLACES = {
    "model": st.sampled_from(sorted(names())),
    "gpu": st.sampled_from(GPUS),
    "tp": st.sampled_from((1, 2, 4, 8)),
    "engine": st.sampled_from(("vllm", "sglang")),
}


def answer(model: str, gpu: str, tp: int, engine: str, batch: int, input_len: int) -> Estimate | None:
    """The estimate, or None where the model cannot be there."""
    try:
        return estimate(model, gpu, tp=tp, engine=engine, batch=batch, input_len=input_len, output_len=32)
    except (DoesNotFit, CannotShard):
        return None
    except UnsupportedDtype:  # FP8 checkpoints on Ampere
        assert gpu == "A100"
        return None


@given(**PLACES)
@examples(8)
def test_more_work_never_takes_less(model: str, gpu: str, tp: int, engine: str) -> None:
    for grid in ([(1, 300), (8, 300), (64, 300)], [(4, 64), (4, 700), (4, 3000)]):
        found = [one for one in (answer(model, gpu, tp, engine, *point) for point in grid) if one]
        for one in found:
            for name in TIMES:
                low, middle, high = (getattr(one, f"{name}{side}") for side in ("_low", "", "_high"))
                assert 0 < low <= middle <= high < math.inf
        for less, more in pairwise(found):
            assert all(getattr(less, name) <= SLACK * getattr(more, name) for name in TIMES)


@given(**PLACES)
@examples(8)
def test_ranks_share_the_work_but_not_more_than_all_of_it(model: str, gpu: str, tp: int, engine: str) -> None:
    one, two = (answer(model, gpu, ranks, engine, 4, 1000) for ranks in (tp, 2 * tp))
    if one and two:
        assert two.memory_gib["weights"] < one.memory_gib["weights"]
        assert two.prefill_ms > 0.45 * one.prefill_ms
        assert two.tpot_ms > 0.45 * one.tpot_ms


@given(
    field=st.sampled_from(["batch", "input_len", "output_len", "tp", "pp", "ep", "max_num_batched_tokens"]),
    value=st.one_of(st.integers(-5, 0), st.sampled_from([1 << 40, 3.5, "8", None, True, float("nan")])),
)
@examples(60)
def test_what_is_no_size_is_refused_by_name(field: str, value: object) -> None:
    assume((field, value) != ("output_len", 0))  # asks for hidden states, as of an embedding model
    sizes: dict[str, object] = {"batch": 4, "input_len": 64, "output_len": 8} | {field: value}
    try:
        estimate("Llama-3.1-8B", "H200", **sizes)  # type: ignore[arg-type]
    except PipewaveError as problem:
        assert field in problem.message or problem.field == field
    else:
        raise AssertionError(f"{field} = {value!r} was taken")

"""The measured implementations of our own kernels, on small pools in the interpreter."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.impls import own_triton, register  # noqa: E402
from pipewave.measure.impls import Pools, Skip, prepare  # noqa: E402
from pipewave.measure.plan import Job  # noqa: E402

ROOM = {"activation": 1 << 18, "weight": 1 << 18, "scratch": 1 << 18}


@pytest.fixture
def pools() -> Pools:
    register()
    return Pools("cpu", ROOM)


def test_matmul_agrees_with_float64_and_says_where_its_configuration_came_from(pools: Pools) -> None:
    # The interpreter multiplies bf16 as raw integers; fp16 takes the same path through the kernel.
    job = Job({"kernel": "gemm", "m": 70, "n": 96, "k": 80, "dtype": "fp16"}, "triton")
    ready = prepare(job, pools)
    assert ready.extra["config_source"] == "default"
    out = ready.call()
    again = Pools("cpu", ROOM, fill=False)
    again._buffers = pools._buffers
    again.begin(job.key)
    x, w = again.take("activation", "fp16", 70, 80), again.take("weight", "fp16", 96, 80)
    expected = x.double() @ w.double().T
    assert (out.double() - expected).abs().max() < 1e-2 * expected.abs().max()


def test_attention_agrees_with_float64(pools: Pools) -> None:
    case = {"kernel": "attention", "q_lens": [40], "kv_lens": [40], "heads": 4, "kv_heads": 2, "head_dim": 64}
    job = Job({**case, "dtype": "fp16", "causal": True}, "triton")
    out = prepare(job, pools).call()
    again = Pools("cpu", ROOM, fill=False)
    again._buffers = pools._buffers
    again.begin(job.key)
    q = again.take("activation", "fp16", 1, 40, 4, 64).double().transpose(1, 2)
    again.take("scratch", "fp16", 1, 40, 4, 64)
    k, v = (again.take("weight", "fp16", 1, 40, 2, 64).double().transpose(1, 2) for _ in range(2))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert (out.double().transpose(1, 2) - expected).abs().max() < 1e-2


@pytest.mark.parametrize("change", [{"q_lens": [3, 4], "kv_lens": [3, 4]}, {"kv_lens": [50]}, {"head_dim": 96}])
def test_what_the_kernel_cannot_run_is_skipped(pools: Pools, change: dict[str, object]) -> None:
    case = {"q_lens": [40], "kv_lens": [40], "heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "fp16"}
    with pytest.raises(Skip):
        own_triton.attention({**case, **change}, pools)

"""Which kernels `@pipewave.tune.autotune` takes, told by their source."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from own_card import Device  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

from pipewave.tune import autotune  # noqa: E402
from pipewave.tune.user_kernels.tuned import TunedKernel  # noqa: E402

CONFIGS = [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((16, 1), (64, 2), (128, 4))]


@triton.jit
def gemm(x, out, M, N, K, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < M) + N * K, mask=at < M)


def test_a_kernel_that_is_called_gemm_is_measured_as_any_other() -> None:
    kernel = autotune(CONFIGS, ["M", "N", "K"], device=Device(), cache=False)(gemm)
    x, out = torch.arange(300.0), torch.zeros(300)
    kernel[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, out, 300, 1, 2)
    assert torch.equal(out, x + 2)
    assert kernel.provenance == {"measured": 1}


def test_our_own_shipped_kernel_is_any_other_kernel_here() -> None:
    from lab.own_kernels.kernels import gemm as ours

    configs = [triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 1}) for _ in range(2)]
    assert isinstance(autotune(configs, ["M", "N", "K"], cache=False)(ours.gemm), TunedKernel)


def test_without_a_source_triton_tunes_and_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipewave.errors import BadInput
    from pipewave.tune.user_kernels import tuned

    def unreadable(*_: Any) -> Any:
        raise BadInput("no source", field="kernel")

    monkeypatch.setattr(tuned, "described", unreadable)
    with pytest.warns(UserWarning, match="gemm: left to triton.autotune"):
        kernel = autotune(CONFIGS, ["M"], reset_to_zero=["out"])(gemm)
    assert type(kernel) is Autotuner
    assert kernel.reset_to_zero == ["out"]

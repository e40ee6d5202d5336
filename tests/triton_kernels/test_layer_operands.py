"""The recorder's launches of the fused layer's products, in the interpreter against its own float64 references."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.own_kernels import build, layer_operands, operands, verify  # noqa: E402
from lab.own_kernels.shapes import draw  # noqa: E402
from lab.own_kernels.space import space  # noqa: E402
from pipewave.tune.shipped_kernels import stated  # noqa: E402

KERNELS = ("moe_up", "moe_down")


@pytest.mark.parametrize("kernel", KERNELS)
def test_launches_agree_with_float64(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "SIZES", {"moe": {"a": 1 << 17, "w": 1 << 21, "c": 1 << 17}})
    torch.manual_seed(3)
    of = space(kernel)
    small = [config for config in of.configs if config[0] <= 64 and config[2] == 64]
    configs = [small[0], small[len(small) // 2], small[-1]]
    binaries: dict[Any, Any] = {}
    for config in configs:
        named = of.as_dict(config)
        constants = {name: named[name] for name in of.names[: of.compiled] if not name.startswith("num_")}
        extra = {"EVEN": True} if kernel == "moe_up" else {}
        binaries[config[: of.compiled]] = (build.function(kernel), constants | extra)
    # The interpreter multiplies bf16 as raw integers; fp16 takes the same path through the kernels.
    device = layer_operands.LayerOperands(kernel, of.names, binaries, "cpu", torch.float16, part=1 << 17)
    assert max(verify.errors(device, configs)) < 0.01


@pytest.mark.parametrize("kernel", KERNELS)
def test_spaces_are_distinct_and_hold_the_default(kernel: str) -> None:
    of = space(kernel)
    assert len(set(of.configs)) == len(of.configs)
    assert all(of.default(shape) in of.configs for shape in draw(kernel, 3, 50))
    assert len({config[: of.compiled] for config in of.configs}) == len(of.binaries())


def test_work_of_the_layer() -> None:
    shape = {"m": 256, "e": 8, "top_k": 2, "hidden": 1024, "inter": 512, "active": 8, "rows_64": 8}
    tile = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64}
    up, down = (stated(kernel)(shape, tile) for kernel in KERNELS)
    assert (up.blocks, up.trips) == (8 * 4, 16)  # gate and up share a tile
    assert (down.blocks, down.trips) == (8 * 8, 8)
    assert up.dram == 2 * (8 * 2 * 512 * 1024 + 256 * 1024 + 512 * 512)
    assert down.idle == (512 + 256) * 1024 / 1024

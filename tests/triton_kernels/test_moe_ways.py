"""The loop's ways of running our layer, in the interpreter against float64; the fixed list; what is compiled ahead."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bench.moe_loop import device, profiling, shapes  # noqa: E402
from pipewave.tune import build, layer_operands, operands  # noqa: E402
from pipewave.tune.space import space  # noqa: E402

SHAPE = {"model": "", "tp": 1, "m": 9, "e": 4, "top_k": 2, "hidden": 64, "inter": 64, "skew": 50, "seed": 3}


class Fixed:
    """A table with one answer."""

    def __init__(self, config: dict[str, int]) -> None:
        self.config = config

    def select(self, **shape: int) -> dict[str, int]:
        return self.config


def launcher(kernel: str, config: tuple[int, ...]) -> Any:
    of = space(kernel)
    constants = {
        name: v for name, v in of.as_dict(config).items() if name in of.names[: of.compiled] and name[0] != "n"
    }
    extra = {"EVEN": True} if kernel == "moe_up" else {}
    binaries = {config[: of.compiled]: (build.function(kernel), constants | extra)}
    return layer_operands.LayerOperands(kernel, of.names, binaries, "cpu", torch.float16, part=1 << 16)


@pytest.mark.parametrize("pick", [0, -1])
def test_both_ways_agree_with_float64(pick: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "SIZES", {"moe": {"a": 1 << 16, "w": 1 << 17, "c": 1 << 16}})
    torch.manual_seed(1)
    chosen = [[c for c in space(kernel).configs if c[0] <= 64 and c[2] == 64][pick] for kernel in profiling.KERNELS]
    launchers = [launcher(kernel, config) for kernel, config in zip(profiling.KERNELS, chosen, strict=True)]
    tables = [Fixed(space(kernel).as_dict(config)) for kernel, config in zip(profiling.KERNELS, chosen, strict=True)]
    layer = device.Layer(SHAPE, launchers, tables)
    wanted = layer.exact()
    assert device.error(layer.ours_sorted(), wanted) < 5e-3
    assert device.error(layer.ours_few(), wanted) < 5e-3


def test_anchors_are_none_of_the_list() -> None:
    names = ("m", "e", "top_k", "hidden", "inter")
    listed = {tuple(row[name] for name in names) for row in shapes.load()}
    assert not listed & {tuple(shape[name] for name in names) for shape in profiling.anchors("moe_up")}

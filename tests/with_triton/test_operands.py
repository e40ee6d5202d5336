"""The recorder's launches, replayed in the interpreter against its own float64 references."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.own_kernels import build, operands, verify  # noqa: E402
from lab.own_kernels.kernels import decode  # noqa: E402
from lab.own_kernels.making import described  # noqa: E402
from lab.own_kernels.space import space  # noqa: E402
from pipewave.tune import tables  # noqa: E402

SMALL = {
    "gemm": {"a": 1 << 17, "w": 1 << 18, "c": 1 << 17},
    "moe": {"a": 1 << 17, "w": 1 << 21, "c": 1 << 17},
    "prefill": {"a": 1 << 19, "w": 1 << 19, "v": 1 << 19, "c": 1 << 19},
    "decode": {"a": 1 << 13, "w": 1 << 20, "v": 1 << 20, "c": 1 << 13},
}


class Interpreted:
    """Stands where a compiled binary would: turns addresses back into tensors and interprets."""

    def __init__(self, code: Any, tensors: Any) -> None:
        self.code, self.tensors = code, tensors

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launch(*arguments: Any) -> None:
            known = self.tensors()
            pointers = build._POINTERS["decode"] | build._POINTERS["moe"] | build._POINTERS["prefill"]
            given = {
                name: known[value] if name in pointers else value
                for name, value in zip(self.code.arg_names, arguments, strict=True)
            }
            self.code[grid](**given)

        return launch


def tensors(of: operands.Operands) -> dict[int, Any]:
    """Every tensor the launches may point at, by address."""
    found = [*of.buffers.values(), *of.extra.values()]
    found += [value for value in vars(of).values() if isinstance(value, torch.Tensor)]
    found += [part for parts in getattr(of, "sorted", {}).values() for part in parts]
    return {tensor.data_ptr(): tensor for tensor in found}


@pytest.mark.parametrize("kernel", tables.KERNELS)
def test_launches_agree_with_float64(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "SIZES", SMALL)
    monkeypatch.setattr(build, "compile_reduce", lambda dim: Interpreted(decode.reduce, lambda: tensors(device)))
    torch.manual_seed(3)
    of = space(kernel)
    binaries: dict[Any, Any] = {}
    # The interpreter multiplies bf16 as raw integers; fp16 takes the same path through the kernels.
    device = operands.Operands(kernel, of.names, binaries, device="cpu", dtype=torch.float16)
    configs = [of.configs[len(of.configs) // 3], of.configs[-1]]
    for config in configs:
        named = of.as_dict(config)
        constants = {name: named[name] for name in of.names[: of.compiled] if not name.startswith("num_")}
        code = Interpreted(build.function(kernel), lambda: tensors(device))
        binaries[config[: of.compiled]] = (code, constants | build.fixed(kernel))
    found = verify.errors(device, configs)
    assert max(found) < 0.01


@pytest.mark.parametrize("kernel", tables.KERNELS)
def test_shipped_tables_are_of_the_kernels_and_spaces_of_this_repository(kernel: str) -> None:
    assert described(kernel) == tables.description(kernel)

"""What a GPU is asked to compile, with a made-up kernel: no GPU, torch or triton."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipewave.tune.user_kernels.device import Built, Launch
from pipewave.tune.user_kernels.gpu import built


class Kernel:
    """Compiles for the block that a descriptor has, as a host's TMA descriptor decides; without one it does not."""

    def run(self, a: Any, *, grid: Any, warmup: bool, BLOCK: int) -> Any:
        assert warmup
        if a.block_shape != [BLOCK]:
            raise ValueError("the descriptor has another block")
        return SimpleNamespace(_init_handles=lambda: None, metadata=SimpleNamespace(shared=64 * BLOCK), n_regs=40)


def test_a_configurations_hook_runs_before_it_is_compiled() -> None:
    descriptor, configs = SimpleNamespace(block_shape=[1]), [{"BLOCK": 16}, {"BLOCK": 32}]

    def hook(index: int) -> None:
        descriptor.block_shape = [configs[index]["BLOCK"]]

    launch = Launch(Kernel(), (1,), (descriptor,), {}, configs, prepare=hook)
    assert [built(launch, index) for index in (0, 1)] == [Built(1024, 40), Built(2048, 40)]
    assert built(Launch(Kernel(), (1,), (descriptor,), {}, configs), 0).error.startswith("ValueError")

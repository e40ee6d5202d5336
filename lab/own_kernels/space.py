"""The configurations each of our own kernels may run with, those of the tables that ship.

A configuration is a tuple of integers in the order of `Space.names`. The first `Space.compiled` of them are built
into a binary; the rest are ordinary launch arguments and cost no compilation.

Members are tiles, warps and stages that fit an SM of Hopper (232,448 bytes of shared memory a block; 128 accumulators a
thread, 192 in attention, where those of scores are free again before the next operands load), and what engines ship.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipewave.tune.shipped_kernels import default, family
from pipewave.tune.tables import description

Config = tuple[int, ...]
Shape = Mapping[str, int]
COMPILED = {"gemm": 5, "moe": 5, "prefill": 4, "decode": 3}


@dataclass(frozen=True, slots=True)
class Space:
    """Configurations of one kernel.

    `names`: parameter names; `compiled`: how many of them (from the left) are part of the binary;
    `configs`: the legal members.
    """

    kernel: str
    names: tuple[str, ...]
    compiled: int
    configs: tuple[Config, ...]

    def default(self, shape: Shape) -> Config:
        """What a user runs without tuning, always a member."""
        return default(self.kernel, shape)

    def as_dict(self, config: Config) -> dict[str, int]:
        """Name the values of a configuration."""
        return dict(zip(self.names, config, strict=True))

    def binaries(self) -> list[Config]:
        """Return the distinct compiled parts, in first-use order."""
        return list(dict.fromkeys(config[: self.compiled] for config in self.configs))


def space(kernel: str) -> Space:
    """Return the configuration space of a kernel. UnknownKernel where no kernel of that name is tuned."""
    configs = description(kernel).configs
    return Space(
        kernel, tuple(configs[0]), COMPILED[family(kernel)], tuple(tuple(config.values()) for config in configs)
    )

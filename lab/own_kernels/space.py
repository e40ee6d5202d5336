"""The configurations each kernel may run with: a product of choices, less what cannot run, plus what others ship.

A configuration is a tuple of integers in the order of `Space.names`. The first `Space.compiled` of them are built
into a binary; the rest are ordinary launch arguments and cost no compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

from lab.own_kernels import layer_space, resources
from lab.own_kernels.resources import Resources
from pipewave.errors import UnknownKernel, did_you_mean
from pipewave.tune.defaults import default

Config = tuple[int, ...]
Shape = Mapping[str, int]


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


def legal(names: tuple[str, ...], choices: Mapping[str, tuple[int, ...]], cost: Callable[[dict[str, int]], Resources],
          shipped: tuple[Config, ...] = ()) -> tuple[Config, ...]:  # fmt: skip
    """Members of the product that fit the SM, then the shipped ones that the product lacks."""
    grid = product(*(choices[name] for name in names))
    fits = [config for config in grid if cost(dict(zip(names, config, strict=True))).problem() is None]
    return tuple(dict.fromkeys([*fits, *shipped]))


MATMUL = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "GROUP_M")


def _gemm(dtype_bytes: int) -> tuple[Config, ...]:
    deep = (64, 128) if dtype_bytes == 2 else (128, 256)
    choices = {"BLOCK_M": (16, 32, 64, 128, 256), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": deep,
               "num_warps": (4, 8), "num_stages": (2, 3, 4), "GROUP_M": (1, 8)}  # fmt: skip
    shipped = ((64, 128, 256, 4, 3, 1), (64, 64, 256, 4, 3, 1)) if dtype_bytes == 1 else ()
    members = legal(MATMUL, choices, lambda config: resources.matmul(config, dtype_bytes), shipped)
    return tuple(config for config in members if _sensible(config))


def _sensible(config: Config) -> bool:
    """Drop corners that are legal and never chosen: eight warps on a small tile, the band order on a single band."""
    m, n, _, warps, _, group = config
    return not (warps == 8 and m * n < 64 * 64) and not (group > 1 and m <= 32)


def _moe() -> tuple[Config, ...]:
    choices = {"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128, 256), "BLOCK_K": (64, 128),
               "num_warps": (4, 8), "num_stages": (2, 3, 4), "GROUP_M": (1, 16)}  # fmt: skip
    members = legal(MATMUL, choices, lambda config: resources.matmul(config, 2), ((64, 64, 32, 4, 3, 8),))
    return tuple(config for config in members if not (config[3] == 8 and config[0] * config[1] < 64 * 64))


def _prefill(head_dim: int) -> tuple[Config, ...]:
    choices = {"BLOCK_M": (32, 64, 128, 256), "BLOCK_N": (16, 32, 64, 128), "num_warps": (2, 4, 8),
               "num_stages": (1, 2, 3, 4), "HEADS_FIRST": (0, 1)}  # fmt: skip
    shipped = ((128, 128, 4 if head_dim <= 64 else 8, 1, 0),)
    members = legal(_FLASH, choices, lambda config: resources.attention(config, head_dim), shipped)
    # A warp owns whole rows of 16, so that the softmax never crosses warps.
    return tuple(config for config in members if config[0] >= 16 * config[2])


def _decode(head_dim: int) -> tuple[Config, ...]:
    choices = {"BLOCK_N": (16, 32, 64, 128), "num_warps": (2, 4), "num_stages": (1, 2, 3, 4),
               "SPLITS": (1, 2, 4, 8, 16, 32, 64)}  # fmt: skip
    return legal(_SPLIT, choices, lambda config: resources.paged(config, head_dim))


_FLASH = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "HEADS_FIRST")
_SPLIT = ("BLOCK_N", "num_warps", "num_stages", "SPLITS")
_SPACES: dict[str, Callable[[], Space]] = {
    "gemm": lambda: Space("gemm", MATMUL, 5, _gemm(2)),
    "gemm_fp8": lambda: Space("gemm_fp8", MATMUL, 5, _gemm(1)),
    "moe_w13": lambda: Space("moe_w13", MATMUL, 5, _moe()),
    "moe_w2": lambda: Space("moe_w2", MATMUL, 5, _moe()),
    "prefill_causal_128": lambda: Space("prefill_causal_128", _FLASH, 4, _prefill(128)),
    "prefill_full_128": lambda: Space("prefill_full_128", _FLASH, 4, _prefill(128)),
    "prefill_causal_64": lambda: Space("prefill_causal_64", _FLASH, 4, _prefill(64)),
    "prefill_full_64": lambda: Space("prefill_full_64", _FLASH, 4, _prefill(64)),
    "decode_128": lambda: Space("decode_128", _SPLIT, 3, _decode(128)),
    "decode_64": lambda: Space("decode_64", _SPLIT, 3, _decode(64)),
}
# The products of the fused layer: spaces of their own, profiled together by `studies.moe_loop`.
_LAYER: dict[str, Callable[[], Space]] = {
    "moe_up": lambda: Space("moe_up", layer_space.UP_NAMES, layer_space.UP_COMPILED, layer_space.up()),
    "moe_down": lambda: Space("moe_down", layer_space.DOWN_NAMES, layer_space.DOWN_COMPILED, layer_space.down()),
}  # fmt: skip


def kernels() -> tuple[str, ...]:
    """Names of the kernels that are recorded and evaluated by themselves; `space` also knows `moe_up`, `moe_down`."""
    return tuple(_SPACES)


def space(kernel: str) -> Space:
    """Return the configuration space of a kernel.

    Raises:
        UnknownKernel: no kernel of that name is tuned.
    """
    every = _SPACES | _LAYER
    if kernel not in every:
        known = ", ".join(every)
        raise UnknownKernel(f"kernel {kernel!r} has no configuration space;{did_you_mean(kernel, every)} "
                            f"known: {known}", field="kernel")  # fmt: skip
    return every[kernel]()

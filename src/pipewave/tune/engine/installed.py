"""What each engine calls its tuned kernels and the functions that find their configurations. Needs that engine.

A configuration is put where the engine would have found a file's: `override_config` for routed experts, the function
that reads the file for block-scaled products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from pipewave.tune.engine.lookups import BLOCK, Lookup

KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
USUAL = {"num_warps": 4, "num_stages": 3, "GROUP_SIZE_M": 1}  # where an engine's rule leaves them to Triton
Config = Mapping[str, int]
Context = Callable[[], AbstractContextManager[Any]]


class Installed(ABC):
    """An engine as it is installed: modules, and what the arguments of their functions differ by. `no_blocks`: sizes of
    blocks for weights without them; `rule_flags`: arguments more of its rule; `stages`: of its block-scaled product
    without a file.
    """

    moe: ClassVar[str]
    rules: ClassVar[str]
    overrides: ClassVar[str]
    block_fp8: ClassVar[str]
    matmul: ClassVar[str]
    stages: ClassVar[int]
    no_blocks: ClassVar[tuple[int | None, int | None]]
    rule_flags: ClassVar[tuple[bool, ...]] = ()

    def prepare(self) -> None:  # noqa: B027  most need nothing
        """What must be said before its kernels can be called."""

    @abstractmethod
    def experts(self, of: Lookup, tensors: tuple[Any, ...], scales: tuple[Any, ...]) -> Callable[[], Any]:
        """Its call of routed experts: of rows, both weights, weights of pairs, experts of pairs; and scales."""

    def default(self, of: Lookup, m: int) -> dict[str, int]:
        """What the engine runs as it is installed: of the file that it ships, else by its rule."""
        shipped = self.shipped(of)
        if shipped:
            found = shipped[min(shipped, key=lambda key: abs(key - m))]
        elif of.kind == "block_fp8":
            found = dict(zip(KEYS, (64, BLOCK, BLOCK, 32, 4, self.stages), strict=True))
        else:
            rule = import_module(self.rules).get_default_config
            found = rule(m, of.e, of.n, of.k, of.top_k, _file_type(of), *self.rule_flags, _blocks(of))
        return {key: int({**USUAL, **found}[key]) for key in KEYS}

    def shipped(self, of: Lookup) -> Mapping[int, Config]:
        """The file that the engine brings for this GPU, by number of tokens; empty without one."""
        if of.kind == "block_fp8":
            return import_module(self.block_fp8).get_w8a8_block_fp8_configs(of.n, of.k, BLOCK, BLOCK) or {}
        files = import_module(self.rules).get_moe_configs
        return files(of.e, of.n, _file_type(of), *(of.blocks or self.no_blocks)) or {}

    def override(self, of: Lookup, m: int, config: dict[str, int]) -> Context:
        """What puts a configuration where the engine would have found a file's."""
        if of.kind == "moe":
            return partial(import_module(self.overrides).override_config, config)
        module = import_module(self.block_fp8)
        return partial(Replaced, module, "get_w8a8_block_fp8_configs", lambda *_: {m: config})

    def product(self) -> Callable[..., Any]:
        """Its block-scaled product."""
        found: Callable[..., Any] = getattr(import_module(self.block_fp8), self.matmul)
        return found


class Vllm(Installed):
    """vLLM."""

    moe = rules = "vllm.model_executor.layers.fused_moe.fused_moe"
    overrides = "vllm.model_executor.layers.fused_moe"
    block_fp8 = "vllm.model_executor.layers.quantization.utils.fp8_utils"
    matmul = "w8a8_triton_block_scaled_mm"
    stages = 2
    no_blocks = 0, 0

    def experts(self, of: Lookup, tensors: tuple[Any, ...], scales: tuple[Any, ...]) -> Callable[[], Any]:
        """What launches the layer once."""
        more: dict[str, Any] = {}
        if scales:
            make = import_module("vllm.model_executor.layers.fused_moe.config").fp8_w8a8_moe_quant_config
            more["quant_config"] = make(w1_scale=scales[0], w2_scale=scales[1], block_shape=_blocks(of))
        return partial(import_module(self.moe).fused_experts, *tensors, **more)


class Sglang(Installed):
    """SGLang."""

    overrides = "sglang.srt.layers.moe.moe_runner.triton_utils"
    moe = f"{overrides}.fused_moe"
    rules = f"{overrides}.fused_moe_triton_config"
    block_fp8 = "sglang.srt.layers.quantization.fp8_kernel"
    matmul = "w8a8_block_fp8_matmul_triton"
    stages = 3
    no_blocks = None, None
    rule_flags = (False,)

    def prepare(self) -> None:
        """Its kernels ask for the settings of a server: those of one that was started without any."""
        settings = import_module("sglang.srt.server_args")
        settings.set_global_server_args_for_scheduler(settings.ServerArgs(model_path="dummy"))

    def experts(self, of: Lookup, tensors: tuple[Any, ...], scales: tuple[Any, ...]) -> Callable[[], Any]:
        """What launches the layer once."""
        more: dict[str, Any] = {}
        if scales:
            more = {"use_fp8_w8a8": True, "w1_scale": scales[0], "w2_scale": scales[1], "block_shape": _blocks(of)}
        # Experts are filtered only where a GPU holds some of them.
        return partial(import_module(self.moe).outplace_fused_experts, *tensors, filter_expert=False, **more)


INSTALLED: Mapping[str, Installed] = {"vllm": Vllm(), "sglang": Sglang()}


def _file_type(of: Lookup) -> str | None:
    return "fp8_w8a8" if of.dtype.startswith("fp8") else None


def _blocks(of: Lookup) -> list[int] | None:
    return list(of.blocks) if of.blocks else None


class Replaced:
    """A function of a module, replaced for a while."""

    def __init__(self, module: Any, name: str, by: Any) -> None:
        self._module, self._name, self._by = module, name, by

    def __enter__(self) -> None:
        self._old = getattr(self._module, self._name)
        setattr(self._module, self._name, self._by)

    def __exit__(self, *_: object) -> None:
        setattr(self._module, self._name, self._old)

"""torch whose tensors have extents and no memory: launches of the comparison on a machine without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def on_paper() -> Any:
    """What `Subject.launch` and a recording ask of torch."""

    def made(name: str) -> Any:
        def make(*size: Any, device: str = "", **more: Any) -> Any:
            return getattr(torch, name)(*size, device="meta", **more)

        return make

    made_of = "empty", "zeros", "ones", "full", "rand", "randint", "arange", "randperm"
    named = "bfloat16", "float16", "float32", "int32", "int64", "int8", "float8_e4m3fn"
    names = {name: made(name) for name in made_of}
    types = {name: getattr(torch, name) for name in named}
    return SimpleNamespace(
        **names,
        **types,
        empty_like=torch.empty_like,
        tensor=lambda value, dtype=None, device="": Held(value, dtype),
        from_numpy=lambda array: Held(array.tolist(), torch.int32),
        cuda=SimpleNamespace(empty_cache=lambda: None),
    )


class Held:
    """A small tensor of which only type and extent are asked."""

    def __init__(self, value: Any, dtype: Any = None) -> None:
        self._of = torch.empty(torch.tensor(value).shape, dtype=dtype or torch.int64, device="meta")

    def cuda(self) -> Held:
        """Stay where it is."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_of"], name)

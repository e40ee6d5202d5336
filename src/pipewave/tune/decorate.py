"""`@pipewave.tune.autotune` where `@triton.autotune` stood: choose by table, or hand over to upstream.

The choice is made from the launch's own integers: no benchmark, no GPU call, nothing kept but a memo, so it is safe
under CUDA-graph capture and from several threads.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipewave.errors import PipewaveError

ARGUMENTS: dict[str, dict[str, str]] = {  # shape field → argument of our kernels, by function name
    "gemm": {"m": "M", "n": "N", "k": "K"},
}


def autotune(configs: Sequence[Any], key: Sequence[str], *args: Any, table: Any = None,
             shape: Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, int]] | None = None,
             **upstream: Any) -> Callable[[Any], Tuned]:  # fmt: skip
    """Decorate a Triton kernel.

    Args:
        configs, key, *args, **upstream: exactly what `triton.autotune` takes; used when no table fits.
        table: a kernel name, a table file, or anything with `select(**shape)`; default: the function's own name.
        shape: shape field → argument name, or a function of the launch's arguments by name.
    """
    return lambda fn: Tuned(fn, configs, (key, *args), upstream, table, shape)


class Tuned:
    """A kernel whose configuration comes from a table. `provenance` counts sources; `reason` says why not a table."""

    def __init__(self, fn: Any, configs: Sequence[Any], positional: tuple[Any, ...], upstream: Mapping[str, Any],
                 table: Any, shape: Any) -> None:  # fmt: skip
        self.fn, self.configs = fn, list(configs)
        self._rest = positional, dict(upstream)
        self.reason = ""
        self.provenance: Counter[str] = Counter()
        self.arg_names: list[str] = list(fn.arg_names)
        self._shape = shape or ARGUMENTS.get(getattr(fn, "__name__", ""))
        self._allowed = {_values(config): config for config in self.configs}
        self._table = self._load(table)
        self._fallback: Any = None

    def _load(self, table: Any) -> Any:
        if hasattr(table, "select"):
            found = table
        else:
            from pipewave.tune.load import load_table

            name = table or getattr(self.fn, "__name__", "")
            try:
                is_file = str(name).endswith(".safetensors")
                found = load_table("", path=name) if is_file else load_table(name)
            except PipewaveError as error:
                self._explain(error.message)
                return None
        if self._shape is None:
            self._explain("no `shape` says which arguments are the table's shape fields")
            return None
        return found

    def _explain(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(
            f"{getattr(self.fn, '__name__', 'kernel')}: falling back to triton.autotune: {reason}", stacklevel=4
        )

    def choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, int] | None:
        """Return the table's configuration for a launch, or None where upstream must decide."""
        if self._table is None:
            return None
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        try:
            config: Mapping[str, int] = self._table.select(**self._fields(named))
        except (PipewaveError, KeyError) as error:
            if not self.reason:
                self._explain(f"{type(error).__name__}: {error}")
            return None
        return config if not self._allowed or frozenset(config.items()) in self._allowed else None

    def _fields(self, named: Mapping[str, Any]) -> Mapping[str, int]:
        if callable(self._shape):
            return dict(self._shape(named))
        return {field: named[argument] for field, argument in (self._shape or {}).items()}

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Return the launcher of a grid, as a Triton kernel does."""

        def launch(*args: Any, **kwargs: Any) -> Any:
            config = self.choose(args, kwargs)
            self.provenance["upstream" if config is None else "table"] += 1
            if config is None:
                return self._upstream()[grid](*args, **kwargs)
            hook = getattr(self._allowed.get(frozenset(config.items())), "pre_hook", None)
            if hook is not None:
                hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **config})
            return self.fn[grid](*args, **kwargs, **config)

        return launch

    def _upstream(self) -> Any:
        if self._fallback is None:
            import triton

            positional, keywords = self._rest
            self._fallback = triton.autotune(self.configs, *positional, **keywords)(self.fn)
        return self._fallback


def _values(config: Any) -> frozenset[tuple[str, int]]:
    """Parameters of a `triton.Config` that a table also names."""
    named = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    return frozenset(named.items())

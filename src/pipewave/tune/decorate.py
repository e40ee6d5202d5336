"""`@pipewave.tune.autotune` where `@triton.autotune` stood: any kernel, or one of ours by its shipped table.

Kernels are told by their source, not by their name: a user's kernel that is called `gemm` is any other kernel.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput, PipewaveError
from pipewave.tune.source.formula import constants_of
from pipewave.tune.tables import load_table, source_sha256
from pipewave.tune.user_kernels.kernel import jit, source_hash
from pipewave.tune.user_kernels.tuned import BUDGET_S, Options, TunedKernel

SHIPPED: dict[str, dict[str, str]] = {  # of kernels whose arguments tell their shape: shape field → argument
    "gemm": {"m": "M", "n": "N", "k": "K"},
}


def autotune(configs: Sequence[Any], key: Sequence[str], *args: Any, table: Any = None,
             shape: Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, int]] | None = None,
             budget_s: float = BUDGET_S, trips: Any = None, cache: str | Path | bool = True, device: Any = None,
             **upstream: Any) -> Callable[[Any], Any]:  # fmt: skip
    """Decorate any Triton kernel: what it does is read from its source, and its first launches are measured.

    Args:
        configs, key, *args, **upstream: exactly what `triton.autotune` takes. The first configuration is the default,
            which is left only for a gain that exceeds the error.
        table: a table file to choose by (`pipewave tune profile FILE.py:kernel`), then nothing is measured; for the
            kernels that pipewave ships tables of, also a name, or anything with `select(**shape)`.
        shape: for those, shape field → argument name, or a function of the launch's arguments by name.
        budget_s: seconds of timing at first use, in all, compilation apart; 0 measures nothing.
        trips: loop trips of a block where the source does not tell them: their mean, (mean, longest), or a function of
            the arguments by name that gives either.
        cache: folder of what was measured instead of the user's own; False keeps nothing.
        device: what measures (`user_kernels.device.Device`); default: the GPU in use.
    """

    def decorate(fn: Any) -> Any:
        named = table if table is not None or shape is not None else shipped(fn)
        if shape is None and not hasattr(named, "select") and named not in SHIPPED:
            options = Options(budget_s, trips, table, cache, device)
            tuned = _tuned(fn, configs, (key, *args), upstream, options)
            if tuned is not None:
                return tuned
        return TableKernel(fn, configs, (key, *args), upstream, named, shape)

    return decorate


def shipped(fn: Any) -> str | None:
    """The name of the shipped kernel that has this source; None for any other."""
    try:
        found = source_hash(jit(fn))
    except (BadInput, AttributeError, TypeError):
        return None
    return next((name for name in SHIPPED if source_sha256(name) == found), None)


def _tuned(fn: Any, configs: Sequence[Any], positional: tuple[Any, ...], keywords: Mapping[str, Any],
         options: Options) -> TunedKernel | None:  # fmt: skip
    """A kernel of the user's own; None where its source cannot be read."""
    try:
        import triton

        constants_of(jit(fn))  # before upstream is asked: a source that cannot be read is not ours
        upstream = triton.autotune(configs, *positional, **keywords)(fn)
        return TunedKernel(fn, upstream, upstream.configs, positional[0], options)
    except (ImportError, AttributeError, BadInput):
        return None


class TableKernel:
    """A kernel whose configuration comes from a table. `provenance` counts sources; `reason` says why not a table."""

    def __init__(self, fn: Any, configs: Sequence[Any], positional: tuple[Any, ...], upstream: Mapping[str, Any],
                 table: Any, shape: Any) -> None:  # fmt: skip
        self.fn, self.configs = fn, list(configs)
        self._rest = positional, dict(upstream)
        self.reason = ""
        self.provenance: Counter[str] = Counter()
        self.arg_names: list[str] = list(fn.arg_names)
        self._shape = shape or (SHIPPED.get(table) if isinstance(table, str) else None)
        self._allowed = {_values(config): config for config in self.configs}
        self._table = self._load(table)
        self._fallback: Any = None

    def _load(self, table: Any) -> Any:
        if hasattr(table, "select"):
            found = table
        else:
            name = table or shipped(self.fn) or getattr(self.fn, "__name__", "")
            try:
                is_file = str(name).endswith(".safetensors")
                found = load_table("", path=name) if is_file else load_table(str(name))
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

"""The measured rows that a net was trained on, by software, and how near they are to what is asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipewave.gpus.registry import of_generation
from pipewave.software import stacks
from pipewave.software.rules import constant

LEVELS = ("measured", "other_gpu", "nearest_version", "other_framework")  # from what was asked for to what is furthest
SIXTEEN_BIT = {"bf16": ("fp16",), "fp16": ("bf16",)}  # types that the same kernels take
FOUR_BIT = ("nvfp4", "mxfp4", "int4")


class TrainingRow(NamedTuple):
    """Rows of one implementation of a stack; `kind` is `kind_of` their types."""

    protocol: str
    stack: str
    kind: str
    gpu: str
    impl: str


def kind_of(dtype: str, kv_dtype: str | None = None) -> str:
    """`bf16`, or `bf16,fp8` where the cache is of another type than the call."""
    return dtype if kv_dtype in (None, "", dtype) else f"{dtype},{kv_dtype}"


def alike(kind: str) -> tuple[str, ...]:
    """The kind itself, and that of the other 16-bit type."""
    dtype, comma, cache = kind.partition(",")
    caches = (cache, *SIXTEEN_BIT.get(cache, ()))
    others = (dtype, *SIXTEEN_BIT.get(dtype, ()))
    return tuple(dict.fromkeys(kind_of(one, two) if comma else one for one in others for two in caches))


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Training rows by software; `crossed` where they are of other types than the call."""

    rows: frozenset[TrainingRow] = frozenset()
    crossed: bool = False

    def pool(self, kind: str, protocol: str) -> TrainingRows:
        """The rows nearest to a kind under a protocol: those themselves, or of its type, or of the protocol.

        Kernels of 4-bit weights are their own: rows of other types under the protocol say nothing about them.
        """
        dtype, kinds = kind.partition(",")[0], alike(kind)
        types = tuple({row.kind for row in self.rows if row.kind.partition(",")[0] in alike(dtype)})
        under = TrainingRows(self._of((protocol,)).rows, crossed=True)
        near = (self._of((protocol,), kinds), self._of((protocol,), types))
        far = (self._of((), kinds), self._of((), types))
        tried = (*near, *far, under) if dtype in FOUR_BIT else (*near, under, *far)
        return next((found for found in tried if found.rows), TrainingRows(self.rows, crossed=True))

    def _of(self, protocols: Collection[str], kinds: Collection[str] | None = None) -> TrainingRows:
        """Rows of these protocols, none standing for all, and of these kinds."""
        kept = (
            r for r in self.rows if (not protocols or r.protocol in protocols) and (kinds is None or r.kind in kinds)
        )
        return TrainingRows(frozenset(kept))

    def of_generation(self, capability: int) -> TrainingRows:
        """The rows of GPUs that run the same kernels as those of a compute capability."""
        gpus = of_generation({row.gpu for row in self.rows}, capability)
        return TrainingRows(frozenset(row for row in self.rows if row.gpu in gpus))

    def elsewhere(self, dtype: str, protocol: str) -> frozenset[str]:
        """Stacks with rows of the type, and with rows under the protocol, if not both at once."""
        kinds = alike(dtype)
        of_type = {row.stack for row in self.rows if row.kind.partition(",")[0] in kinds}
        return frozenset(of_type & {row.stack for row in self.rows if row.protocol == protocol})

    def exactly(self, kind: str, protocol: str, stack: str, impl: str | None = None) -> TrainingRows:
        """The rows that tell how near a stack, and an implementation, is: of the kind under the protocol, or under any
        where it has none.
        """
        pool = self.pool(kind, protocol)
        listed = any(row.stack == stack if impl is None else row.impl == impl for row in pool.rows)
        return pool if listed or pool.crossed else self._of((), alike(kind))

    def stacks(self, gpu: str | None = None) -> tuple[str, ...]:
        """Stacks with rows, on any GPU or on this one."""
        return tuple(sorted({row.stack for row in self.rows if gpu in (None, row.gpu)}))

    def gpus(self, stack: str) -> tuple[str, ...]:
        """Where a stack has rows."""
        return tuple(sorted({row.gpu for row in self.rows if row.stack == stack}))

    def level(self, gpu: str, stack: str, impl: str | None = None) -> str:
        """How near the rows are to a stack, and to an implementation of it where one is given, on a GPU."""
        rows = [row for row in self.rows if impl is None or row.impl == impl]
        if any(row.stack == stack and row.gpu == gpu for row in rows):
            return LEVELS[0]
        if any(row.stack == stack for row in rows):
            return LEVELS[1]
        same = any(stacks.framework(row.stack) == stacks.framework(stack) for row in rows)
        return LEVELS[2] if same else LEVELS[3]


def furthest(*levels: str) -> str:
    """Of several levels, the one that promises least."""
    return max(levels, key=LEVELS.index)


def changes(stack: str, dtype: str, net: str, capability: int) -> tuple[tuple[int, ...], ...]:
    """Versions of the stack's framework from which on it runs other kernels of a type, for calls that a net answers."""
    facts = {"framework": stacks.framework(stack), "dtype": dtype, "net": net, "capability": capability}
    found: tuple[tuple[int, ...], ...] = constant("changed_in", **facts)
    return found


def from_nested(document: Mapping[str, Any]) -> TrainingRows:
    """Read what `nested` wrote: protocol → stack → kind → GPU → implementations."""
    rows = (
        TrainingRow(protocol, stack, kind, gpu, impl)
        for protocol, of_protocol in document.items()
        for stack, of_stack in of_protocol.items()
        for kind, of_kind in of_stack.items()
        for gpu, impls in of_kind.items()
        for impl in impls
    )
    return TrainingRows(frozenset(rows))


def nested(rows: Collection[TrainingRow]) -> dict[str, Any]:
    """Rows as nested objects, as cards hold them."""
    document: dict[str, Any] = {}
    for row in sorted(set(rows)):
        of_kind = document.setdefault(row.protocol, {}).setdefault(row.stack, {}).setdefault(row.kind, {})
        of_kind.setdefault(row.gpu, []).append(row.impl)
    return document

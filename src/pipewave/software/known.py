"""Which rows a net was trained on, by software, and which of them answer for a stack that is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipewave.gpus.kindred import of_generation
from pipewave.software import stacks
from pipewave.software.rules import constant

LEVELS = ("measured", "other_gpu", "nearest_version", "other_framework")  # from what was asked for to what is furthest
SIXTEEN_BIT = {"bf16": ("fp16",), "fp16": ("bf16",)}  # types that the same kernels take
FOUR_BIT = ("nvfp4", "mxfp4", "int4")
EXAMPLES = 3  # GPUs that a note names


class Ran(NamedTuple):
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
class Known:
    """Training rows by software; `crossed` where they are of other types than the call."""

    rows: frozenset[Ran] = frozenset()
    crossed: bool = False

    def pool(self, kind: str, protocol: str) -> Known:
        """The rows nearest to a kind under a protocol: those themselves, or of its type, or of the protocol.

        Kernels of 4-bit weights are their own: rows of other types under the protocol say nothing about them.
        """
        dtype, kinds = kind.partition(",")[0], alike(kind)
        types = tuple({row.kind for row in self.rows if row.kind.partition(",")[0] in alike(dtype)})
        under = Known(self._of((protocol,)).rows, crossed=True)
        near = (self._of((protocol,), kinds), self._of((protocol,), types))
        far = (self._of((), kinds), self._of((), types))
        tried = (*near, *far, under) if dtype in FOUR_BIT else (*near, under, *far)
        return next((found for found in tried if found.rows), Known(self.rows, crossed=True))

    def _of(self, protocols: Collection[str], kinds: Collection[str] | None = None) -> Known:
        """Rows of these protocols, none standing for all, and of these kinds."""
        kept = (
            r for r in self.rows if (not protocols or r.protocol in protocols) and (kinds is None or r.kind in kinds)
        )
        return Known(frozenset(kept))

    def of_generation(self, capability: int) -> Known:
        """The rows of GPUs that run the same kernels as those of a compute capability."""
        gpus = of_generation({row.gpu for row in self.rows}, capability)
        return Known(frozenset(row for row in self.rows if row.gpu in gpus))

    def elsewhere(self, dtype: str, protocol: str) -> frozenset[str]:
        """Stacks with rows of the type, and with rows under the protocol, if not both at once."""
        kinds = alike(dtype)
        of_type = {row.stack for row in self.rows if row.kind.partition(",")[0] in kinds}
        return frozenset(of_type & {row.stack for row in self.rows if row.protocol == protocol})

    def exactly(self, kind: str, protocol: str, stack: str, impl: str | None = None) -> Known:
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


class Query(NamedTuple):
    """A stack, if one is named, and what it is to run: on which GPU, of which kind, measured under which protocol;
    by which net it is answered, and the GPU's compute capability.
    """

    stack: str | None
    gpu: str
    kind: str
    protocol: str
    net: str = ""
    capability: int = 0

    @property
    def dtype(self) -> str:
        """The type of the call."""
        return self.kind.partition(",")[0]


class Choice(NamedTuple):
    """The stack that answers under the name it was asked by, the name its rows have, and how near they are."""

    stack: str
    measured_as: str
    level: str
    note: str = ""


def choose(known: Known, query: Query, usual: str | None, by_name: Collection[str] = ()) -> Choice:
    """The stack to answer from: the one asked for where it has rows of the type, else what is nearest to it.

    `usual` answers for frameworks without rows; `by_name` are stacks of whose kernels of the type the names are known.
    """
    pool = known.pool(query.dtype, query.protocol)
    stacked = tuple(sorted({*pool.stacks(), *known.elsewhere(query.dtype, query.protocol), *by_name}))
    used = query.stack or stacks.default(query.protocol, stacked, usual)
    name = stacks.measured_as(used, stacked)
    if query.stack and stacked and name not in stacked:
        return _own_of_other_types(known, stacked, query) or _substituted(pool, stacked, query, usual)
    exact = known.exactly(query.kind, query.protocol, name)
    level = exact.level(query.gpu, name)
    plain = query.stack is None or level == LEVELS[0]
    return Choice(used, name, level, "" if plain else _note(query, _where(exact, name)))


def _own_of_other_types(known: Known, of_type: Sequence[str], query: Query) -> Choice | None:
    """The framework's kernels of other types, where it has none of this one; those of 4-bit weights are their own."""
    if query.dtype in FOUR_BIT or stacks.nearest(str(query.stack), of_type):
        return None
    near = stacks.nearest(str(query.stack), sorted({row.stack for row in known.rows if row.protocol == query.protocol}))
    return Choice(near, near, LEVELS[3], _note(query, f"{near}: its rows of other types")) if near else None


def _substituted(pool: Known, known: Sequence[str], query: Query, usual: str | None) -> Choice:
    """The nearest version, on GPUs of this generation if any is measured there; else another framework."""
    here, name = pool.stacks(query.gpu), str(query.stack)
    changed = changes(name, query.dtype, query.net, query.capability)
    tried = ({*here, *pool.of_generation(query.capability).stacks()}, known)
    near = next(filter(None, (stacks.nearest(name, sorted(some), changed) for some in tried)), None)
    used = near or (usual if usual in known else None) or (here or known)[-1]
    text = used if query.gpu in pool.gpus(used) else f"{used}: {_where(pool, used)}"
    return Choice(used, used, LEVELS[2] if near else LEVELS[3], _note(query, text))


def changes(stack: str, dtype: str, net: str, capability: int) -> tuple[tuple[int, ...], ...]:
    """Versions of the stack's framework from which on it runs other kernels of a type, for calls that a net answers."""
    facts = {"framework": stacks.framework(stack), "dtype": dtype, "net": net, "capability": capability}
    found: tuple[tuple[int, ...], ...] = constant("changed_in", **facts)
    return found


def _note(query: Query, answered: str) -> str:
    types = query.kind.replace(",", " with a cache of ")
    return f"no rows of {query.stack} {types} on {query.gpu} were used in training; answered from {answered}"


def _where(pool: Known, stack: str) -> str:
    gpus = pool.gpus(stack)
    more = ", ..." if len(gpus) > EXAMPLES else ""
    return f"its rows on {', '.join(gpus[:EXAMPLES])}{more}" if gpus else "its rows of other types and versions"


def from_nested(document: Mapping[str, Any]) -> Known:
    """Read what `nested` wrote: protocol → stack → kind → GPU → implementations."""
    return Known(frozenset(_rows(document)))


def _rows(document: Mapping[str, Any]) -> Iterator[Ran]:
    for protocol, of_protocol in document.items():
        for stack, of_stack in of_protocol.items():
            for kind, of_kind in of_stack.items():
                yield from (Ran(protocol, stack, kind, gpu, impl) for gpu, impls in of_kind.items() for impl in impls)


def nested(rows: Collection[Ran]) -> dict[str, Any]:
    """Rows as nested objects, as cards hold them."""
    document: dict[str, Any] = {}
    for row in sorted(set(rows)):
        of_kind = document.setdefault(row.protocol, {}).setdefault(row.stack, {}).setdefault(row.kind, {})
        of_kind.setdefault(row.gpu, []).append(row.impl)
    return document

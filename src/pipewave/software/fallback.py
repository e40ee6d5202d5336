"""Which software answers for a stack that is asked for: an ordered list of stacks with the reason of each.

Rows that a net was trained on are of some stacks, types, protocols and GPUs. `fallback_chain` lists what may answer,
nearest first; the first candidate does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipewave.gpus.registry import of_generation
from pipewave.software import stacks
from pipewave.software.rules import constant

LEVELS = ("measured", "other_gpu", "nearest_version", "other_framework")  # from what was asked for to what is furthest
SIXTEEN_BIT = {"bf16": ("fp16",), "fp16": ("bf16",)}  # types that the same kernels take
FOUR_BIT = ("nvfp4", "mxfp4", "int4")
EXAMPLES = 3  # GPUs that a note names


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


class Candidate(NamedTuple):
    """A stack that may answer: the name it was asked by, the name its rows have, how near they are (`LEVELS`), and the
    reason why it answers where it is not what was asked for.
    """

    stack: str
    measured_as: str
    level: str
    note: str = ""


def fallback_chain(
    rows: TrainingRows, query: Query, usual: str | None, by_name: Collection[str] = ()
) -> tuple[Candidate, ...]:
    """What may answer a query, nearest first: the stack itself where it has rows of the type; else its nearest version
    with rows on GPUs of this generation, then on any; else its kernels of other types; else another framework.

    `usual` answers for frameworks without rows; `by_name` are stacks of whose kernels of the type the names are known.
    """
    pool = rows.pool(query.dtype, query.protocol)
    listed = tuple(sorted({*pool.stacks(), *rows.elsewhere(query.dtype, query.protocol), *by_name}))
    used = query.stack or stacks.default(query.protocol, listed, usual)
    name = stacks.measured_as(used, listed)
    if query.stack and listed and name not in listed:
        return tuple(_substitutes(rows, pool, listed, query, usual))
    exact = rows.exactly(query.kind, query.protocol, name)
    level = exact.level(query.gpu, name)
    plain = query.stack is None or level == LEVELS[0]
    return (Candidate(used, name, level, "" if plain else _note(query, _where(exact, name))),)


def _substitutes(
    rows: TrainingRows, pool: TrainingRows, listed: Sequence[str], query: Query, usual: str | None
) -> Iterator[Candidate]:
    """The chain where the stack that is asked for has no rows of the type."""
    here, name = pool.stacks(query.gpu), str(query.stack)
    changed = changes(name, query.dtype, query.net, query.capability)
    for some in ({*here, *pool.of_generation(query.capability).stacks()}, listed):
        if near := stacks.nearest(name, sorted(some), changed):
            yield _substitute(pool, query, near, LEVELS[2])
    if query.dtype not in FOUR_BIT and not stacks.nearest(name, listed):  # kernels of 4-bit weights are their own
        under = sorted({row.stack for row in rows.rows if row.protocol == query.protocol})
        if near := stacks.nearest(name, under):
            yield Candidate(near, near, LEVELS[3], _note(query, f"{near}: its rows of other types"))
    yield _substitute(pool, query, (usual if usual in listed else None) or (here or listed)[-1], LEVELS[3])


def _substitute(pool: TrainingRows, query: Query, used: str, level: str) -> Candidate:
    text = used if query.gpu in pool.gpus(used) else f"{used}: {_where(pool, used)}"
    return Candidate(used, used, level, _note(query, text))


def changes(stack: str, dtype: str, net: str, capability: int) -> tuple[tuple[int, ...], ...]:
    """Versions of the stack's framework from which on it runs other kernels of a type, for calls that a net answers."""
    facts = {"framework": stacks.framework(stack), "dtype": dtype, "net": net, "capability": capability}
    found: tuple[tuple[int, ...], ...] = constant("changed_in", **facts)
    return found


def _note(query: Query, answered: str) -> str:
    types = query.kind.replace(",", " with a cache of ")
    return f"no rows of {query.stack} {types} on {query.gpu} were used in training; answered from {answered}"


def _where(pool: TrainingRows, stack: str) -> str:
    gpus = pool.gpus(stack)
    more = ", ..." if len(gpus) > EXAMPLES else ""
    return f"its rows on {', '.join(gpus[:EXAMPLES])}{more}" if gpus else "its rows of other types and versions"


def from_nested(document: Mapping[str, Any]) -> TrainingRows:
    """Read what `nested` wrote: protocol → stack → kind → GPU → implementations."""
    return TrainingRows(frozenset(_rows(document)))


def _rows(document: Mapping[str, Any]) -> Iterator[TrainingRow]:
    for protocol, of_protocol in document.items():
        for stack, of_stack in of_protocol.items():
            for kind, of_kind in of_stack.items():
                yield from (
                    TrainingRow(protocol, stack, kind, gpu, impl) for gpu, impls in of_kind.items() for impl in impls
                )


def nested(rows: Collection[TrainingRow]) -> dict[str, Any]:
    """Rows as nested objects, as cards hold them."""
    document: dict[str, Any] = {}
    for row in sorted(set(rows)):
        of_kind = document.setdefault(row.protocol, {}).setdefault(row.stack, {}).setdefault(row.kind, {})
        of_kind.setdefault(row.gpu, []).append(row.impl)
    return document

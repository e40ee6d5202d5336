"""Which software answers for what is asked: one chain of stacks and implementations, each with its reason.

Rows that a net was trained on are of some stacks, types, protocols and GPUs. `fallback_chain` lists the stacks that may
answer, nearest first; the first does, by the implementation that `choose` finds of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from pipewave.calls.dtypes import FOUR_BIT
from pipewave.gpus import GPU
from pipewave.nets.nets import Trained
from pipewave.nets.weights_metadata import LEVELS, TrainingRows, WeightsMetadata, changes, furthest
from pipewave.software import stacks
from pipewave.software.ageing import age
from pipewave.software.rules import constant

EXAMPLES = 3  # GPUs that a note names
NEAR_MONTHS = 3  # up to which a neighbour's rows tell more than those of the library it calls on other GPUs
# What the corpus's tables of collectives call the contract's implementations.
COLLECTIVES = {"NCCL": "nccl", "TRTLLM": "custom"} | {
    f"{name}_{mode}": "custom" for name in ("vLLM_custom", "SGLang_CustomAllReduce") for mode in ("graph", "eager")
}


class Query(NamedTuple):
    """What is asked."""

    stack: str | None  # if one is named
    gpu: str
    kind: str  # `kind_of` its types
    protocol: str  # that rows were measured under
    net: str = ""  # that answers it
    capability: int = 0  # the GPU's

    @property
    def dtype(self) -> str:
        """The type of the call."""
        return self.kind.partition(",")[0]

    def changed(self, used: str) -> bool:
        """Whether another version ran other kernels of the type; how far off these are, replays alone were counted."""
        wanted, since = stacks.version(str(self.stack)), changes(str(self.stack), self.dtype, self.net, self.capability)
        return self.protocol == "graph" and any((stacks.version(used) < one) != (wanted < one) for one in since)


class Candidate(NamedTuple):
    """A stack that may answer."""

    stack: str  # as it was asked for
    measured_as: str  # as its rows have it
    level: str  # how near they are (`LEVELS`)
    note: str = ""  # the reason, where it is not what was asked for


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
    if query.stack and listed and (name not in listed or (name != used and _neighboured(pool, name, query))):
        return tuple(_substitutes(rows, pool, listed, query, usual))
    exact = rows.exactly(query.kind, query.protocol, name)
    level = exact.level(query.gpu, name)
    plain = query.stack is None or level == LEVELS[0]
    return (Candidate(used, name, level, "" if plain else _note(query, _where(exact, name))),)


def _neighboured(pool: TrainingRows, library: str, query: Query) -> bool:
    """Whether a version near the one asked for has rows on the GPU, and the library that it calls has none."""
    near = stacks.nearest(str(query.stack), pool.stacks(query.gpu))
    older = age(near, str(query.stack)) if near else None
    return bool(near) and query.gpu not in pool.gpus(library) and (not older or older.months < NEAR_MONTHS)


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
    older, other = age(used, str(query.stack)), level == LEVELS[2] and query.changed(used)
    known = (text, str(older) if older else "", "which ran other kernels of this type" if other else "")
    return Candidate(used, used, level, _note(query, ", ".join(filter(None, known))))


def _note(query: Query, answered: str) -> str:
    types = query.kind.replace(",", " with a cache of ")
    return f"no rows of {query.stack} {types} on {query.gpu} were used in training; answered from {answered}"


def _where(pool: TrainingRows, stack: str) -> str:
    gpus = pool.gpus(stack)
    more = ", ..." if len(gpus) > EXAMPLES else ""
    return f"its rows on {', '.join(gpus[:EXAMPLES])}{more}" if gpus else "its rows of other types and versions"


def choose(
    learned: Trained, query: Query, gpu: GPU, impl: str | None, selectors: Sequence[str]
) -> tuple[Candidate, str, tuple[str, ...]]:
    """The stack that answers, as near as its rows are on the whole, its implementation, and what to say of it.
    `selectors`: what a stack chooses its implementation by.
    """
    card, seen = learned.card, learned.net.categories.get("impl", {})
    by_name = card.names(query.dtype) if query.dtype in FOUR_BIT else frozenset()  # every shape measured is held out
    by_name = by_name & frozenset(card.stacks.get(query.protocol, ())) or by_name
    found = fallback_chain(card.known, query, card.default_stack.get(query.protocol), by_name)[0]
    stack, impl, note = found.measured_as, _as_trained(impl, seen), ""
    if impl and seen and impl not in seen and impl not in card.default_impl.values():
        note = f"impl {impl!r}: no row was measured with it"
    runs = impl or _by_rule(card, query, found, gpu, selectors)
    runs = runs or card.impl(stack, gpu.compute_capability, query.dtype, selectors, query.net)
    if not runs and (runs := card.impl_of_other_types(stack, gpu.compute_capability)):
        note = f"no kernel of {query.dtype} is known of {stack}; answered as {runs}, measured on other types"
    if "impl" not in learned.net.categories:
        return found, runs, (found.note,)
    rows = card.known.exactly(query.kind, query.protocol, stack, runs)
    level = furthest(found.level, rows.level(query.gpu, stack, runs))
    if (impl or found.note) and not note and level not in (found.level, LEVELS[0]):
        note = f"no rows of {stack} with {runs} on {query.gpu} were used in training"
    return found._replace(level=level), runs, (found.note, note)


def _as_trained(impl: str | None, seen: Collection[str]) -> str | None:
    """The name under which a net knows what a corpus table calls `impl`."""
    impl = COLLECTIVES.get(impl or "", impl)
    if not impl or impl in seen:
        return impl
    return next((name for name in sorted(seen) if name.partition(":")[0] == impl), impl)  # `…:mxfp8`: its activations


def _by_rule(card: WeightsMetadata, query: Query, found: Candidate, gpu: GPU, selectors: Sequence[str]) -> str:
    """What the code of a version takes by default, where no row of that version on the GPU's generation says it."""
    rows = card.known.exactly(query.kind, query.protocol, found.measured_as).of_generation(gpu.compute_capability)
    told = found.measured_as == query.stack and rows.gpus(found.measured_as)
    if not query.stack or found.level == LEVELS[0] or told:
        return ""
    return default_impl(query.net, query.stack, gpu, query.dtype, query.protocol, causal="False" not in selectors)


def default_impl(net: str, stack: str, gpu: GPU, dtype: str, protocol: str, *, causal: bool = True) -> str:
    """The implementation that a stack's own code takes by default, by the rule of that name; empty where none says.

    `causal`: False for attention in which every token sees every other, which the rule of text does not speak of.
    """
    facts = {"framework": stacks.framework(stack), "version": stacks.version(stack), "protocol": protocol}
    facts |= {"architecture": gpu.architecture, "mma": gpu.traits.mma}
    return str(constant("default_impl", net=net, dtype=dtype, causal=causal, **facts))

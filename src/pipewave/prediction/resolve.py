"""Which software a batch of calls is answered from, and how familiar that ground is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from pipewave.errors import UnsupportedDtype
from pipewave.gpus import GPU, find
from pipewave.gpus.registry import of_generation
from pipewave.kernels.base import Context, Family
from pipewave.nets.nets import trained
from pipewave.nets.weights_metadata import WeightsMetadata
from pipewave.physics.cache import SERVING
from pipewave.software import stacks
from pipewave.software.fallback import (
    FOUR_BIT,
    LEVELS,
    SIXTEEN_BIT,
    Candidate,
    Query,
    TrainingRows,
    alike,
    fallback_chain,
    furthest,
    kind_of,
)
from pipewave.software.rules import constant

# What the corpus's tables of collectives call the contract's implementations.
COLLECTIVES = {"NCCL": "nccl", "TRTLLM": "custom"} | {
    f"{name}_{mode}": "custom" for name in ("vLLM_custom", "SGLang_CustomAllReduce") for mode in ("graph", "eager")
}
REVEALING = ("config", "tile", "ctas")  # options that say how a call was implemented, not what it computes


@dataclass(frozen=True, slots=True)
class Source:
    """What a batch of answers rests on. `software`: one of `pipewave.software.fallback.LEVELS`.

    `near`: rows of the GPU were measured, or of the one it is a copy of, in this type or in the other 16-bit one.
    `reference_gpu`: where they were not, the nearest GPU of its generation of which such rows were.
    """

    basis: str
    impl: str
    stack: str
    software: str
    notes: tuple[str, ...] = ()
    near: bool = False
    reference_gpu: str = ""
    sibling: bool = False  # a new architecture, but rows are of one that runs the same family-specific code


@lru_cache(maxsize=4096)
def with_note(source: Source, note: str) -> Source:
    """The source with one more thing to say."""
    return replace(source, notes=(*source.notes, note))


@lru_cache(maxsize=4096)
def resolve(
    family: Family, gpu: GPU, dtype: str, protocol: str, stack: str | None, impl: str | None, options: tuple[Any, ...]
) -> tuple[Context, Source]:
    """Decide which software a batch is answered from, and say what was substituted. Raises UnsupportedDtype."""
    gpu.peak_flops(dtype)
    if gpu.traits.stand_in:
        kind = f"{family.name} {dict(options).get('phase', '')}".strip()
        stack, impl = gpu.traits.stand_in_kernels.get(kind, (gpu.traits.stand_in, None))
    if family.dtypes and dtype not in family.dtypes:
        runs = ", ".join(family.dtypes)
        raise UnsupportedDtype(f"{family.name} has no kernels of dtype {dtype!r}: it has {runs}", field="dtype")
    net = net_name(family, options)
    learned = trained(net)
    if learned is None:
        used = stack or stacks.DEFAULT[protocol]
        source = Source("new_architecture", impl or "", used, LEVELS[-1])
        return Context(gpu, dtype, protocol, used, impl or "", options), source
    seen, card = measured_protocol(protocol), learned.card
    named, stack = stack, stacks.versioned(stack, protocol, [name for names in card.stacks.values() for name in names])
    lacks = stacks.lacks(named) if named else ""
    guessed = f"{named} names no {lacks}: {stack} assumed" if lacks and named != stack else ""
    choice, ran = _software(family, gpu, dtype, protocol, stack, _as_trained(net, impl), options)
    basis = card.basis(gpu.name, gpu.compute_capability, dtype, seen)
    near = any((gpu.base_gpu, kind, seen) in card.trained for kind in alike(dtype))
    elsewhere = _rows_elsewhere(card, gpu, dtype, protocol) if basis != "measured_gpu" else ""
    reference = "" if near else _reference_gpu(card, gpu, dtype, seen)
    notes = tuple(filter(None, (guessed, choice.note, ran.note, elsewhere)))
    sibling = basis == "new_architecture" and bool(reference) and gpu.traits.family_code
    source = Source(basis, ran.impl, choice.stack, ran.level, notes, near, reference, sibling)
    used = choice.measured_as
    return Context(gpu, dtype, protocol, used, ran.impl, options, _other_version(stack, used)), source


def _reference_gpu(card: WeightsMetadata, gpu: GPU, dtype: str, protocol: str) -> str:
    """The GPU of the same generation nearest to this one of which rows of a type under a protocol were trained on."""
    found = {name for name, kind, under in card.trained if under == protocol and kind in alike(dtype)}
    same = map(find, of_generation(found, gpu.compute_capability))
    near = min(same, key=lambda one: (*_unlike(one, gpu), one.name), default=None)
    return near.name if near else ""


def _unlike(one: GPU, other: GPU) -> tuple[float, ...]:
    """How far two GPUs of a generation are apart: in capability, then in bandwidth."""
    rates = one.dram_peak_gbps, other.dram_peak_gbps
    return abs(one.compute_capability - other.compute_capability), max(rates) / min(rates)


def _rows_elsewhere(card: WeightsMetadata, gpu: GPU, dtype: str, protocol: str) -> str:
    """Why the basis of one protocol is not that of another. A step says itself what its kernels are answered as."""
    if protocol == SERVING:
        return ""
    others = sorted(of for name, of_type, of in card.trained if (name, of_type) == (gpu.name, dtype))
    known = ", ".join(others)
    return f"rows of {gpu.name} {dtype} are of protocol {known}: {protocol} counts as unseen" if known else ""


def _other_version(named: str | None, used: str) -> str:
    """The version asked for, where another of the framework answers: what is known of it by rule still holds."""
    same = named and named != used and stacks.framework(named) == stacks.framework(used)
    return named if named and same and stacks.version(named) else ""


def _by_name(card: WeightsMetadata, dtype: str, protocol: str) -> frozenset[str]:
    """Stacks of which a 4-bit kernel is known by name only: every shape that it was measured at is held out."""
    if dtype not in FOUR_BIT:
        return frozenset()
    known = card.names(dtype)
    return known & frozenset(card.stacks.get(protocol, ())) or known


class Runs(NamedTuple):
    """The implementation that answers, how near the software's rows are on the whole, and what to say of it."""

    impl: str
    level: str
    note: str


def _software(
    family: Family, gpu: GPU, dtype: str, protocol: str, stack: str | None, impl: str | None, options: tuple[Any, ...]
) -> tuple[Candidate, Runs]:
    """The stack and the implementation that answer: known by GPU, type, protocol and net."""
    given, net, seen = dict(options), net_name(family, options), measured_protocol(protocol)
    card = trained(net).card  # type: ignore[union-attr]
    query = Query(stack, gpu.base_gpu, kind_of(dtype, given.get("kv_dtype")), seen, net, gpu.compute_capability)
    choice = fallback_chain(card.known, query, card.default_stack.get(seen), _by_name(card, dtype, seen))[0]
    return choice, _runs(net, card, query, choice, impl, gpu, _selected(family, dtype, given))


def _runs(
    net: str,
    card: WeightsMetadata,
    query: Query,
    choice: Candidate,
    impl: str | None,
    gpu: GPU,
    selectors: tuple[str, ...],
) -> Runs:
    """The implementation asked for, or the one the stack runs; types are crossed where none is known, with a note."""
    stack, note = choice.measured_as, _unknown_impl(net, impl)
    found = impl or _by_rule(net, query, choice, gpu, selectors, card.known)
    found = found or card.impl(stack, gpu.compute_capability, query.dtype, selectors, net)
    if not found and (found := card.impl_of_other_types(stack, gpu.compute_capability)):
        note = f"no kernel of {query.dtype} is known of {stack}; answered as {found}, measured on other types"
    if not distinguishes_impls(net):
        return Runs(found, choice.level, "")
    rows = card.known.exactly(query.kind, query.protocol, stack, found)
    level = furthest(choice.level, rows.level(query.gpu, stack, found))
    if (impl or choice.note) and not note and level not in (choice.level, LEVELS[0]):
        note = f"no rows of {stack} with {found} on {query.gpu} were used in training"
    return Runs(found, level, note)


def _by_rule(
    net: str, query: Query, choice: Candidate, gpu: GPU, selectors: tuple[str, ...], known: TrainingRows
) -> str:
    """What the code of a version takes by default, where no row of that version on the GPU's generation says it."""
    named = choice.measured_as == query.stack
    rows = known.exactly(query.kind, query.protocol, choice.measured_as).of_generation(gpu.compute_capability)
    if not query.stack or choice.level == LEVELS[0] or (named and rows.gpus(choice.measured_as)):
        return ""
    return default_impl(net, query.stack, gpu, query.dtype, query.protocol, causal="False" not in selectors)


def default_impl(net: str, stack: str, gpu: GPU, dtype: str, protocol: str, *, causal: bool = True) -> str:
    """The implementation that a stack's own code takes by default, by the rule of that name; empty where none says.

    `causal`: False for attention in which every token sees every other, which the rule of text does not speak of.
    """
    facts = {"framework": stacks.framework(stack), "version": stacks.version(stack), "protocol": protocol}
    facts |= {"architecture": gpu.architecture, "mma": gpu.traits.mma}
    return str(constant("default_impl", net=net, dtype=dtype, causal=causal, **facts))


def distinguishes_impls(net: str) -> bool:
    """Whether a net tells implementations apart."""
    learned = trained(net)
    return learned is not None and "impl" in learned.net.categories


def net_name(family: Family, options: tuple[tuple[str, Any], ...]) -> str:
    """The net that calls with these options are answered from; empty where the family has none."""
    values = [value for _, value in options]
    return next((net for net in family.nets if net in values), family.nets[0]) if family.nets else ""


def _selected(family: Family, dtype: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What a stack chooses its implementation by; a cache without a type of its own has that of the call."""
    values = {"kv_dtype": dtype} | {name: value for name, value in options.items() if value is not None}
    return tuple(str(values.get(name)) for name in family.selected_by)


def _as_trained(net: str, impl: str | None) -> str | None:
    """The name under which a net knows what a corpus table calls `impl`."""
    impl = COLLECTIVES.get(impl or "", impl)
    learned = trained(net)
    seen = learned.net.categories.get("impl", {}) if learned else {}
    if not impl or impl in seen:
        return impl
    return next((name for name in sorted(seen) if name.partition(":")[0] == impl), impl)  # `…:mxfp8`: its activations


def _unknown_impl(net: str, impl: str | None) -> str:
    """What to say of an implementation without measured rows; nothing where the net does not tell them apart."""
    learned = trained(net)
    seen = learned.net.categories.get("impl", {}) if learned else {}
    if not impl or not seen or impl in seen or impl in learned.card.default_impl.values():  # type: ignore[union-attr]
        return ""
    return f"impl {impl!r}: no row was measured with it"


@lru_cache(maxsize=4096)
def plain_context(ctx: Context, net: str) -> Context:
    """The context that net's ceiling is answered in: default software, nothing said about how a call is implemented."""
    learned = trained(net)
    if learned is None or learned.ceiling is None or learned.ceiling.plain is None:
        return ctx
    known = learned.ceiling.plain
    stack, impl = known.plain(measured_protocol(ctx.protocol), ctx.gpu.compute_capability, ctx.dtype)
    options = tuple((name, None if name in REVEALING else value) for name, value in ctx.options)
    return replace(ctx, stack=stack, impl=impl, options=options, requested="")


def measured_protocol(protocol: str) -> str:
    """The protocol whose rows answer for it: calls inside a step are predicted as cold ones."""
    return "cold" if protocol == SERVING else protocol


def codes_of(ctx: Context, net: str) -> Mapping[str, str]:
    """The categories that a net may look at."""
    kv = ctx.option("kv_dtype") or ctx.dtype
    protocol = measured_protocol(ctx.protocol)
    dtype, kv = (
        _row_type(net, name, each, ctx.stack, protocol) for name, each in (("dtype", ctx.dtype), ("kv_dtype", kv))
    )
    codes = {"stack": ctx.stack, "impl": ctx.impl, "dtype": dtype, "kv_dtype": kv, "protocol": protocol}
    return codes | {"gpu": ctx.gpu.base_gpu, "family": ctx.gpu.architecture}


@lru_cache(maxsize=4096)
def _row_type(net: str, category: str, dtype: str, stack: str, protocol: str) -> str:
    """The type whose rows answer for a call of `dtype`: the other 16-bit one where a stack's rows under a protocol are
    of that alone, since the same kernels take both.
    """
    learned = trained(net)
    others = SIXTEEN_BIT.get(dtype, ())
    if learned is None or not others:
        return dtype
    rows = learned.card.known.rows
    seen = {r.kind.partition(",")[0] for r in rows if (r.stack, r.protocol) == (stack, protocol)}
    seen = seen & {dtype, *others} or {*learned.net.categories.get(category, ())}
    return dtype if dtype in seen else next((other for other in others if other in seen), dtype)

"""What the answers of a batch rest on: its context, the software that answers, how familiar that ground is, and what
all its calls share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from pipewave.calls.dtypes import SIXTEEN_BIT
from pipewave.errors import UnknownGPU, UnsupportedDtype
from pipewave.gpus import GPU, find
from pipewave.gpus.registry import of_generation
from pipewave.gpus.spec import VALUE_FIELDS
from pipewave.kernels.base import Context, Family
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.correction import Correction, SoftwareCorrection
from pipewave.nets.nets import Ceiling, Trained, trained
from pipewave.nets.weights_metadata import LEVELS, Interval, WeightsMetadata, alike, intervals_of, kind_of
from pipewave.physics.cache import SERVING, measured_protocol
from pipewave.physics.power import Draw, draw_of
from pipewave.prediction.columns import options_of
from pipewave.prediction.fallback import Candidate, Query, choose
from pipewave.software import stacks
from pipewave.software.ageing import age, other_kernels

REVEALING = ("config", "tile", "ctas")  # options that say how a call was implemented, not what it computes
UNSEEN = "new_architecture"  # the basis of answers whose architecture no row is of
UNTRAINED = {"measured_gpu": Interval(1.0), "same_architecture": Interval(1.5), UNSEEN: Interval(2.0)}
# What a what-if may change and still be answered as its original times what physics says.
RATES = frozenset((
    "boost_clock_mhz", "sustained_clock_mhz", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops",
    "int8_tops", "fp4_tflops", "dram_gbps", "dram_pin_gbps", "dram_measured_gbps", "l2_gbps", "link_gbps", "pcie_gbps",
    "tdp_w",
))  # fmt: skip
Found = TypeVar("Found")
FLOORS, TIMES, CEILINGS = range(3)  # what is asked of calls: what physics settles, times as well, ceilings as well


@dataclass(frozen=True, slots=True)
class Source:
    """What a batch of answers rests on."""

    basis: str
    impl: str
    stack: str
    software: str  # one of `LEVELS`
    notes: tuple[str, ...] = ()
    near: bool = False  # rows are of the GPU or of its original, in this type or the other 16-bit one
    reference_gpu: str = ""  # else the nearest GPU of its generation with such rows
    aged: float = 1.0  # by what intervals of another version are widened for the time between the two
    least: float = 0.0  # half-width in log time, at least, where another version ran other kernels
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
    if family.dtypes and dtype not in family.dtypes:
        runs = ", ".join(family.dtypes)
        raise UnsupportedDtype(f"{family.name} has no kernels of dtype {dtype!r}: it has {runs}", field="dtype")
    given = dict(options)
    if gpu.traits.stand_in:
        kind = f"{family.name} {given.get('phase', '')}".strip()
        stack, impl = gpu.traits.stand_in_kernels.get(kind, (gpu.traits.stand_in, None))
    net = net_name(family, options)
    learned = trained(net)
    if learned is None:
        used, runs = stack or stacks.DEFAULT[protocol], impl or ""
        return Context(gpu, dtype, protocol, used, runs, options), Source(UNSEEN, runs, used, LEVELS[-1])
    known = [name for names in learned.card.stacks.values() for name in names]
    named, stack = stack, stacks.versioned(stack, protocol, known)
    lacks = stacks.lacks(named) if named else ""
    guessed = f"{named} names no {lacks}: {stack} assumed" if lacks and named != stack else ""
    kinds, seen = kind_of(dtype, given.get("kv_dtype")), measured_protocol(protocol)
    query = Query(stack, gpu.base_gpu, kinds, seen, net, gpu.compute_capability)
    # What a stack chooses its implementation by; a cache without a type of its own has that of the call.
    values = {"kv_dtype": dtype} | {name: value for name, value in given.items() if value is not None}
    selectors = tuple(str(values.get(name)) for name in family.selected_by)
    found, runs, said = choose(learned, query, gpu, impl, selectors)
    other, aged, least = _version_gap(query, found, impl)
    notes = tuple(filter(None, (guessed, *said)))
    source = Source(UNSEEN, runs, found.stack, found.level, notes, aged=aged, least=least)
    ctx = Context(gpu, dtype, protocol, found.measured_as, runs, options, other)
    return ctx, _on_ground(source, learned.card, gpu, dtype, protocol)


def _version_gap(query: Query, found: Candidate, impl: str | None) -> tuple[str, float, float]:
    """The version that is asked for where another one of its framework answers, of which what is known by rule still
    holds; by what intervals are widened for the time between the two; and their half-width in log time at least.
    """
    stack, used = query.stack or "", found.measured_as
    if stack in ("", used) or stacks.framework(stack) != stacks.framework(used) or not stacks.version(stack):
        return "", 1.0, 0.0
    if found.level != LEVELS[2]:
        return stack, 1.0, 0.0
    older = age(used, stack)
    least = other_kernels(query.net) if not impl and query.changed(used) else 0.0
    return stack, older.factor(query.net) if older else 1.0, least


def _on_ground(source: Source, card: WeightsMetadata, gpu: GPU, dtype: str, protocol: str) -> Source:
    """The source with how familiar its ground is: of which GPUs rows were trained on."""
    seen = measured_protocol(protocol)
    basis = card.basis(gpu.name, gpu.compute_capability, dtype, seen)
    near = any((gpu.base_gpu, kind, seen) in card.trained for kind in alike(dtype))
    reference = "" if near else _reference_gpu(card, gpu, dtype, seen)
    sibling = basis == UNSEEN and bool(reference) and gpu.traits.family_code
    elsewhere = _rows_elsewhere(card, gpu, dtype, protocol) if basis != "measured_gpu" else ""
    notes = (*source.notes, elsewhere) if elsewhere else source.notes
    return replace(source, basis=basis, notes=notes, near=near, reference_gpu=reference, sibling=sibling)


def _reference_gpu(card: WeightsMetadata, gpu: GPU, dtype: str, protocol: str) -> str:
    """The GPU of the same generation, nearest in capability and then bandwidth, of which such rows were trained on."""
    found = {name for name, kind, under in card.trained if under == protocol and kind in alike(dtype)}

    def unlike(name: str) -> tuple[float, float, str]:
        one = find(name)
        rates = one.dram_peak_gbps, gpu.dram_peak_gbps
        return abs(one.compute_capability - gpu.compute_capability), max(rates) / min(rates), name

    return min(of_generation(found, gpu.compute_capability), key=unlike, default="")


def _rows_elsewhere(card: WeightsMetadata, gpu: GPU, dtype: str, protocol: str) -> str:
    """Why the basis of one protocol is not that of another. A step says itself what its kernels are answered as."""
    if protocol == SERVING:
        return ""
    others = sorted(of for name, of_type, of in card.trained if (name, of_type) == (gpu.name, dtype))
    known = ", ".join(others)
    return f"rows of {gpu.name} {dtype} are of protocol {known}: {protocol} counts as unseen" if known else ""


def net_name(family: Family, options: tuple[tuple[str, Any], ...]) -> str:
    """The net that calls with these options are answered from; empty where the family has none."""
    values = [value for _, value in options]
    return next((net for net in family.nets if net in values), family.nets[0]) if family.nets else ""


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
    """The type whose rows answer: the other 16-bit one where a stack's rows are of that alone."""
    learned = trained(net)
    others = SIXTEEN_BIT.get(dtype, ())
    if learned is None or not others:
        return dtype
    rows = learned.card.known.rows
    seen = {r.kind.partition(",")[0] for r in rows if (r.stack, r.protocol) == (stack, protocol)}
    seen = seen & {dtype, *others} or {*learned.net.categories.get(category, ())}
    return dtype if dtype in seen else next((other for other in others if other in seen), dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What all calls of one context share."""

    ctx: Context
    source: Source
    net: str
    learned: Trained | None  # None where no net was trained or asked
    ceiling: Ceiling | None  # None where none was trained or asked
    # Of calls, of features that the net sees, and both as the ceiling is asked.
    contexts: tuple[Context, Context, Context, Context]
    widths: tuple[Interval, ...]
    codes: Mapping[str, str]
    plain_codes: Mapping[str, str]  # of the ceiling
    correction: SoftwareCorrection | None
    draws: dict[str, Draw] = field(default_factory=dict)  # by type of the products, as they are asked for

    @property
    def width(self) -> float | None:
        """A calibration's factor on the half-width of the interval, in log time."""
        return self.correction.width if self.correction else None

    def draw(self, product: str) -> Draw:
        """What the calls draw. `product`: type of their products where it is not that of the calls."""
        ctx = self.ctx
        found = draw_of(ctx.gpu, self.net, product or ctx.dtype, ctx.stack, ctx.protocol, ctx.impl, ctx.dtype)
        return self.draws.setdefault(product, found)

    def each(self, found: Callable[[Context], Found]) -> tuple[Found, ...]:
        """What is found under each of the contexts."""
        known = {ctx: found(ctx) for ctx in dict.fromkeys(self.contexts)}
        return tuple(known[ctx] for ctx in self.contexts)


@lru_cache(maxsize=4096)
def setting(
    family: Family,
    key: tuple[Any, ...],
    gpu: GPU,
    protocol: str,
    in_force: corrections.InForce | None,
    asked: int = CEILINGS,
    net: str | None = None,
) -> Setting:
    """Calls of a group key as they are measured one by one. `net`: where it is not the family's usual one."""
    dtype, stack, impl = key[:3]
    ctx, source = resolve(family, gpu, dtype, protocol, stack, impl, options_of(family, key))
    source, net = assuming(family, ctx, source), net_name(family, ctx.options) if net is None else net
    learned = None if asked == FLOORS else trained(net)
    ceiling = learned.ceiling if learned and asked == CEILINGS else None
    seen = as_original(ctx) if learned else ctx
    plain = plain_context(ctx, net) if ceiling else ctx
    contexts = (ctx, seen, plain, as_original(plain)) if ceiling else (ctx, seen, ctx, seen)
    intervals, measured = learned.card.intervals if learned else UNTRAINED, measured_protocol(protocol)
    widths = intervals_of(intervals, source.basis, measured, source.software, dtype, sibling=source.sibling,
                          aged=source.aged, least=source.least, stack=source.stack)  # fmt: skip
    codes, correction = codes_of(ctx, net), in_force.of(ctx, net) if learned and in_force else None
    if correction:
        source = corrected(source, correction)
    moved_by = correction.of_software(codes) if correction else None
    return Setting(ctx, source, net, learned, ceiling, contexts, widths, codes, codes_of(plain, net), moved_by)


def corrected(source: Source, correction: Correction) -> Source:
    """What answers rest on that a calibration moved."""
    return replace(with_note(source, correction.note), near=source.near or bool(correction.origin))


def assuming(family: Family, ctx: Context, source: Source) -> Source:
    """What rests on an assumption that no row shows is as uncertain as a new architecture, and says so."""
    said = family.assumed(ctx) if family.assumed else ""
    return replace(with_note(source, said), basis=UNSEEN) if said else source


@lru_cache(maxsize=4096)
def as_original(ctx: Context) -> Context:
    """The context whose features the nets see: of a what-if that changes rates alone, that of its original."""
    original = _original(ctx.gpu)
    return ctx if original is None else replace(ctx, gpu=original)


@lru_cache(maxsize=1024)
def _original(gpu: GPU) -> GPU | None:
    """The GPU that a what-if of other rates was made of."""
    if not gpu.origin:
        return None
    try:
        original = find(gpu.origin)
    except UnknownGPU:
        return None
    changed = {name for name in VALUE_FIELDS if getattr(gpu, name) != getattr(original, name)}
    return original if changed <= RATES else None

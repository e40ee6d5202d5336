"""Which software a batch of calls is answered from, and how familiar that ground is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pipewave.errors import UnsupportedDtype
from pipewave.gpus import GPU
from pipewave.kernels.base import Context, Family
from pipewave.physics.cache import SERVING
from pipewave.residual.nets import trained
from pipewave.software import stacks

# What the corpus's tables of collectives call the contract's implementations.
COLLECTIVES = {"NCCL": "nccl", "TRTLLM": "custom"} | {
    f"{name}_{mode}": "custom" for name in ("vLLM_custom", "SGLang_CustomAllReduce") for mode in ("graph", "eager")
}
REVEALING = ("config", "tile", "ctas")  # options that say how a call was implemented, not what it computes


@dataclass(frozen=True, slots=True)
class Source:
    """What a batch of answers rests on. `near`: rows of the card were measured, or of the one it is a copy of."""

    basis: str
    impl: str
    stack: str
    notes: tuple[str, ...] = ()
    near: bool = False


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
    net = net_name(family, options)
    learned = trained(net)
    known: tuple[str, ...] = ()
    near = False
    if learned is None:
        used, note = stacks.resolve(stack, protocol, known, None)
        basis = "new_architecture"
    else:
        card, seen = learned.card, measured_protocol(protocol)
        known, usual = card.known_stacks(seen, dtype), card.default_stack.get(seen)
        used, note = stacks.resolve(stack, protocol, known, usual if usual in known else None)
        basis, nearest = (card.basis(name, gpu.compute_capability, dtype, seen) for name in (gpu.name, gpu.kin))
        near = nearest == "measured_gpu"
        impl = _as_trained(net, impl)
        note = "; ".join(filter(None, (note, _unknown_impl(net, impl))))
        told = _told(family, dtype, dict(options))
        impl = impl or card.impl(stacks.measured_as(used, known), gpu.compute_capability, dtype, told)
    source = Source(basis, impl or "", used, (note,) if note else (), near)
    return Context(gpu, dtype, protocol, stacks.measured_as(used, known), impl or "", options), source


def net_name(family: Family, options: tuple[tuple[str, Any], ...]) -> str:
    """The net that calls with these options are answered from; empty where the family has none."""
    values = [value for _, value in options]
    return next((net for net in family.nets if net in values), family.nets[0]) if family.nets else ""


def _told(family: Family, dtype: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What a stack chooses its implementation by; a cache without a type of its own has that of the call."""
    values = {"kv_dtype": dtype} | {name: value for name, value in options.items() if value is not None}
    return tuple(str(values.get(name)) for name in family.told_by)


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
    return replace(ctx, stack=stack, impl=impl, options=options)


def measured_protocol(protocol: str) -> str:
    """The protocol whose rows answer for it: calls inside a step are predicted as cold ones."""
    return "cold" if protocol == SERVING else protocol


def codes_of(ctx: Context) -> Mapping[str, str]:
    """The categories a net may look at."""
    kv = ctx.option("kv_dtype") or ctx.dtype
    protocol = measured_protocol(ctx.protocol)
    codes = {"stack": ctx.stack, "impl": ctx.impl, "dtype": ctx.dtype, "kv_dtype": kv, "protocol": protocol}
    return codes | {"gpu": ctx.gpu.kin, "family": ctx.gpu.architecture}

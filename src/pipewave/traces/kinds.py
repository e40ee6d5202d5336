"""What kernel names mean, as data: the first pattern found in a name decides. Families declare their own patterns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pipewave.kernels import registered, revision
from pipewave.kernels.faces import KernelName


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kernel is. `role`: its part in a model; `family`: what predicts it (None: nothing does); `impl`: whose.

    `joins`: the kernel belongs to the call of the `previous` or `next` kernel of its family.
    """

    pattern: str
    role: str
    family: str | None
    impl: str | None = None
    joins: str = ""


# Kernels that nothing here predicts; their ranks are explained with `KernelName`.
UNPREDICTED = (
    KernelName(31, r"nccl", "collective"),
    # Layers with a state instead of a cache.
    KernelName(
        40,
        r"causal_conv1d|selective_(scan|state)|chunk_(scan|state|fwd|cumsum)|state_passing|delta_rule|wkv",
        "state_space",
    ),
    KernelName(110, r"Memcpy (HtoD|DtoH|HtoH|PtoP)", "host_copy"),
    KernelName(110, r"spin_kernel", "spin"),
)
UNKNOWN = Kind("", "unknown", None)


def kinds() -> tuple[Kind, ...]:
    """Every pattern of every registered family, and of what none predicts, in the order in which they are tried."""
    named = [(name, family.name) for family in registered() for name in family.profile.names]
    found = [*named, *((name, None) for name in UNPREDICTED)]
    return tuple(
        Kind(name.pattern, name.role, family, name.impl, name.joins)
        for name, family in sorted(found, key=lambda pair: pair[0].rank)
    )


def whole_operators() -> dict[str, Kind]:
    """Operators that are one call of a family, by name."""
    return _whole_operators(revision())


@lru_cache(maxsize=1)
def _whole_operators(registry: int) -> dict[str, Kind]:
    return {name: Kind("", "sample", family.name) for family in registered() for name in family.profile.whole}


# Operand types as kernel names spell them; the first found wins, so narrow types come before what they are scaled in.
DTYPES: tuple[tuple[str, str], ...] = (
    (r"nvfp4|mxfp4|float_e2m1|fp4_t|e2m1", "nvfp4"),
    (r"nvjet_(sm\d+_)?q|e4m3|Float8|fp8", "fp8"),
    (r"int8_t|_i8|imma|s8_s8", "int8"),
    (r"nvjet_(sm\d+_)?h|f16f16|_fp16_|__half|half_t|c10::Half|_f16_", "fp16"),
    (r"nvjet_(sm\d+_)?t|bf16|bfloat|BFloat", "bf16"),
)

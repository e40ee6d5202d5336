"""Kernel names read: the kind of kernel (the first pattern that is found decides), its operand type, its tile."""

from __future__ import annotations

import re
from functools import lru_cache

from pipewave.kernels import registered, revision
from pipewave.kernels.family_metadata import names_of
from pipewave.kernels.profiler import LONGEST, KernelName

UNKNOWN = KernelName(0, "", "unknown")
_NVJET = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_(\d+)x\d+_.*_TN[NT]$")
_BLAS = re.compile(r"tilesize(\d+)x(\d+)x(\d+)|gemm_\w*?(\d+)x(\d+)_(?:\w*?stages_|ldg\d_\w*?|)(\d+)x\d+")
_CUTE = re.compile(r"cute::tuple<cute::C<(\d+)>, cute::C<(\d+)>, cute::C<(\d+)>\s*>")
_FA2 = re.compile(r"Flash_fwd_kernel_traits<(\d+), (\d+), (\d+)")


def kinds() -> tuple[KernelName, ...]:
    """Every pattern of every registered family, and of what none predicts, in the order in which they are tried."""
    named = [name._replace(family=family.name) for family in registered() for name in family.profile.names]
    return tuple(sorted((*named, *names_of(None)), key=lambda name: name.rank))


def kind_of(name: str) -> KernelName:
    """The kind of a kernel, UNKNOWN where no pattern knows it."""
    return _kind_of(name, revision())


@lru_cache(maxsize=65536)
def _kind_of(name: str, registry: int) -> KernelName:
    head = name[:LONGEST]
    return next((kind for pattern, kind in _patterns(registry) if pattern.search(head)), UNKNOWN)


@lru_cache(maxsize=1)
def _patterns(_registry: int) -> tuple[tuple[re.Pattern[str], KernelName], ...]:
    return tuple((re.compile(kind.pattern), kind) for kind in kinds())


@lru_cache(maxsize=65536)
def tile_of(name: str) -> tuple[int, int, int] | None:
    """Output rows (tokens), columns and depth of a tile; queries, keys and head size of an attention kernel.

    cuBLAS multiplies transposed (its rows are output features), so its first two numbers trade places.
    """
    if found := _NVJET.search(name):
        features, tokens, depth = (int(number) for number in found.groups())
        return tokens, features, depth
    if found := _FA2.search(name):
        return int(found[2]), int(found[3]), int(found[1])
    if found := _BLAS.search(name):
        features, tokens, depth = (int(number) for number in found.groups() if number)
        return tokens, features, depth
    sizes = [tuple(map(int, match)) for match in _CUTE.findall(name[:LONGEST])]
    return next(((m, n, k) for m, n, k in sizes if m * n * k > 1024), None)


@lru_cache(maxsize=65536)
def short(name: str) -> str:
    """A name without return type, templates and arguments."""
    if "FlashAttn" in name or "cutlass_3x_gemm" in name:
        words: list[str] = re.findall(r"\w+", name)
        return next(word for word in words if "FlashAttn" in word or "cutlass_3x_gemm" in word)
    plain = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", name)
    if plain.startswith("std::enable_if") and "::type " in plain:
        plain = plain.partition("::type ")[2]
    plain = re.sub(r"^(void|int|float|bool) ", "", plain)
    inner = re.search(r"(FillFunctor|direct_copy_kernel|CUDAFunctor\w*_\w+|ArgMaxOps|sum_functor)", plain)
    base = re.split(r"[<(]", plain, maxsplit=1)[0].strip() or plain[:60]
    return f"{base}[{inner[1]}]" if inner and inner[1] not in base else base

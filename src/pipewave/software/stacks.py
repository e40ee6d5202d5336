"""Software stacks by name: `framework-version`, the nearest known version, and what runs when nothing is said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

DEFAULT = {"cold": "vllm-0.22.1", "serving": "vllm-0.22.1", "graph": "vllm-0.24.0", "profiler_warm": "torch-2.8"}
PROTOCOLS = tuple(DEFAULT)
RELEASE = 1000  # orders a release after its candidates, of which there are fewer
# What runs under another name: this vLLM pins this torch, and calls its cuBLAS for 16-bit products.
UNDERLYING = {"vllm-0.22.1": "torch-2.11"}


def framework(stack: str) -> str:
    """`vllm` of `vllm-0.22.1`."""
    return stack.partition("-")[0]


def version(stack: str) -> tuple[int, ...]:
    """Numbers of the version, for ordering: `trtllm-1.3.0rc20` is (1, 3, 0, 20), its release after it (1, 3, 0, 1000),
    and what follows a release after that: `sglang-0.5.8.post1` is (0, 5, 8, 1001)."""
    text = stack.partition("-")[2]
    numbers = version_of(text)
    if not numbers or "rc" in text or "dev" in text:
        return numbers
    return (*(*numbers, 0, 0)[:3], RELEASE + sum(numbers[3:]))


def version_of(text: str) -> tuple[int, ...]:
    """Numbers of a bare version, for ordering: `0.5.8.post1` is (0, 5, 8, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def nearest(stack: str, known: Sequence[str], changed: Sequence[tuple[int, ...]] = ()) -> str | None:
    """The known stack closest to `stack`: the same framework and the nearest version, or None.

    `changed`: versions from which on other kernels run; one on the same side of them all is closer than any other.
    """
    same = [name for name in known if framework(name) == framework(stack)]
    wanted = version(stack)

    def far(name: str) -> tuple[bool, tuple[int, ...], str]:
        across = any((version(name) < change) != (wanted < change) for change in changed)
        return across, _distance(version(name), wanted), name

    return min(same, key=far) if same else None


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(one), len(other))
    padded = zip(one + (0,) * (width - len(one)), other + (0,) * (width - len(other)), strict=True)
    return tuple(abs(a - b) for a, b in padded)


def measured_as(stack: str, known: Sequence[str]) -> str:
    """The name under which a stack's kernels were measured: its own, or that of the library it calls."""
    below = UNDERLYING.get(stack, stack)
    return below if stack not in known and below in known else stack


def versioned(stack: str | None, protocol: str, known: Iterable[str]) -> str | None:
    """A stack that names no version as the usual one of its framework, else as the newest known; others as they are."""
    if not stack or version_of(stack):
        return stack
    usual = DEFAULT[protocol]
    same = [name for name in known if framework(name) == stack]
    return usual if framework(usual) == stack else max(same, key=version, default=stack)


def default(protocol: str, known: Sequence[str], otherwise: str | None) -> str:
    """The stack of calls that name none; `otherwise` where it has no rows."""
    usual = DEFAULT[protocol]
    if measured_as(usual, known) in known:
        return usual
    return (otherwise if otherwise in known else None) or nearest(usual, known) or (known[-1] if known else usual)

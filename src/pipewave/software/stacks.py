"""Software stacks by name: `framework-version`, the nearest known version, and what runs when nothing is said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

DEFAULT = {"cold": "vllm-0.22.1", "serving": "vllm-0.22.1", "graph": "vllm-0.24.0", "profiler_warm": "torch-2.8"}
PROTOCOLS = tuple(DEFAULT)
RELEASE = 1000  # orders a release after its candidates, of which there are fewer
# What runs under another name: this vLLM pins this torch, and calls its cuBLAS for 16-bit products.
UNDERLYING = {"vllm-0.22.1": "torch-2.11"}
# As people, packages and container tags write it: `TensorRT-LLM 1.3.0rc20`, `vllm==0.22.1`, `vllm:v0.22.1-cu130`.
VERSION = re.compile(r"(?:^|[\s:=@_-])v?(\d+(?:\.(?:\w+|\*))*(?:-rc\d+)?)(?:[+-].*)?$")
NO_VERSION = re.compile(r"(?:^|[\s:=@_-])(?:latest|newest|stable|nightly|main|dev)$")
BETWEEN_WORDS = " :=@_-"
ALSO = {"tensorrtllm": "trtllm", "pytorch": "torch"}  # other names of a framework, without what separates their words


@lru_cache(maxsize=4096)
def _parts(stack: str) -> tuple[str, str]:
    """The framework and the text of the version as the corpus spells them: `vllm` and `0.22.1` of `vLLM==0.22.1+cu130`;
    empty for what names none.
    """
    text = NO_VERSION.sub("", stack.strip().lower())
    found = VERSION.search(text)
    name = (text[: found.start()] if found else text).strip(BETWEEN_WORDS)
    joined = "".join(letter for letter in name if letter not in BETWEEN_WORDS)
    return ALSO.get(joined, name), found[1] if found else ""


def framework(stack: str) -> str:
    """`vllm` of `vllm-0.22.1`."""
    return _parts(stack)[0]


def version_text(stack: str) -> str:
    """`0.22.1` of `vllm-0.22.1`; empty where no version is named."""
    return _parts(stack)[1]


@lru_cache(maxsize=4096)
def version(stack: str) -> tuple[int, ...]:
    """Numbers of the version, for ordering: `trtllm-1.3.0rc20` is (1, 3, 0, 20), its release after it (1, 3, 0, 1000),
    and what follows a release after that: `sglang-0.5.8.post1` is (0, 5, 8, 1001).
    """
    text = _parts(stack)[1]
    numbers = version_of(text)
    if not numbers or "rc" in text or "dev" in text:
        return numbers
    return (*(*numbers, 0, 0)[:3], RELEASE + sum(numbers[3:]))


def version_of(text: str | Sequence[int]) -> tuple[int, ...]:
    """Numbers of a bare version, for ordering: `0.5.8.post1` is (0, 5, 8, 1)."""
    return tuple(map(int, re.findall(r"\d+", text))) if isinstance(text, str) else tuple(text)


def nearest(stack: str, known: Sequence[str], changed: Sequence[tuple[int, ...]] = ()) -> str | None:
    """The known stack closest to `stack`: the same framework and the nearest version, or None.

    Only the last version before it and the first after it can be. `changed`: versions from which on other kernels run;
    those on the same side of them all are closer than any other.
    """
    wanted, same = version(stack), sorted((n for n in known if framework(n) == framework(stack)), key=version)
    alike = [name for name in same if all((version(name) < change) == (wanted < change) for change in changed)]
    before = [name for name in alike or same if version(name) <= wanted]
    after = [name for name in alike or same if version(name) > wanted]
    return min((*before[-1:], *after[:1]), key=lambda name: _distance(version(name), wanted), default=None)


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(one), len(other))
    padded = zip(one + (0,) * (width - len(one)), other + (0,) * (width - len(other)), strict=True)
    return tuple(abs(a - b) for a, b in padded)


def measured_as(stack: str, known: Sequence[str]) -> str:
    """The name under which a stack's kernels were measured: its own, or that of the library it calls."""
    below = UNDERLYING.get(stack, stack)
    return below if stack not in known and below in known else stack


def versioned(stack: str | None, protocol: str, known: Iterable[str]) -> str | None:
    """A stack under the name that its rows have, if any has them: where it names no version the usual one of its
    framework or else the newest known, where it names no framework the one that knows the version, or the usual one.
    """
    if not stack:
        return stack
    (name, number), usual = _parts(stack), DEFAULT[protocol]
    listed = [usual, *known]
    if not number:
        name = name or framework(DEFAULT["cold"])
        same = [each for each in listed if framework(each) == name]
        return usual if framework(usual) == name else max(same, key=version, default=stack)
    same = [each for each in listed if version(each) == version(stack) and name in ("", framework(each))]
    return same[0] if same else f"{name or framework(DEFAULT['cold'])}-{number}"


def lacks(stack: str) -> str:
    """Which part of its name a stack leaves out: `version`, `framework`, or nothing."""
    name, number = _parts(stack)
    return "framework" if not name else "" if number else "version"


def default(protocol: str, known: Sequence[str], otherwise: str | None) -> str:
    """The stack of calls that name none; `otherwise` where it has no rows."""
    usual = DEFAULT[protocol]
    if measured_as(usual, known) in known:
        return usual
    return (otherwise if otherwise in known else None) or nearest(usual, known) or (known[-1] if known else usual)

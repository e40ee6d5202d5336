"""What is recorded of engines by name: which versions have code for a type of model, how many drafts it accepts, for
which layers of routed experts Triton block sizes are shipped, and their container images.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.dtypes import SIXTEEN_BIT
from pipewave.files import packaged
from pipewave.physics.demand import Array
from pipewave.software.stacks import version_of

READS, ACCEPTANCE = (Path(__file__).with_name(f"{name}.json") for name in ("reads", "acceptance"))
# Framework → GPU → type → version that brought the `files` → [experts, width] of a rank.
TUNED = Path(__file__).with_name("tuned_experts.json")


class Image(NamedTuple):
    """An engine's container image for NVIDIA GPUs. `serves`: it starts the server itself: options follow its name."""

    repository: str
    tag: str  # of a version
    source: str
    registry: str = ""  # where it is not Docker's own
    serves: bool = False

    def of(self, version: str) -> str:
        """Its whole name for a version of the engine."""
        return f"{self.registry}{self.repository}:{self.tag.format(version=version)}"


@cache
def images() -> Mapping[str, Image]:
    """Images by engine."""
    return {engine: Image(**row) for engine, row in packaged.shared(READS.with_name("images.yaml")).items()}


@cache
def first_versions(engine: str) -> Mapping[str, str]:
    """The first version that is recorded to have a class for a type of model; empty of an engine without a list."""
    since = packaged.shared(READS).get(engine, {}).get("since", {})
    return {model_type: str(version) for version, types in since.items() for model_type in types}


@cache
def unread(engine: str, version: str, model_type: str) -> str:
    """What to say of a model that a version is not recorded to have a class for; empty where it is."""
    known = first_versions(engine)
    if not model_type or not known or version_of(version) >= version_of(known.get(model_type, (1 << 30,))):
        return ""
    kind, first = packaged.shared(READS)[engine]["kind"], known.get(model_type)
    said = f"the {kind} for {model_type} is recorded from {first} on"
    return (
        f"{engine} {version} may not serve this model: {said if first else f'no {kind} is recorded for {model_type}'}"
    )


@cache
def acceptance(method: str, model_type: str = "") -> tuple[float, ...]:
    """Probability that the draft of each position is accepted; the last one for all that follow."""
    found = _accepted(method, model_type)["acceptance"]
    return tuple(float(rate) for rate in (found if isinstance(found, list) else [found]))


@cache
def acceptance_range(method: str, model_type: str = "") -> tuple[float, float]:
    """Between what the probability lies, by text and sampling, in nine of ten cases."""
    low, high = _accepted(method, model_type)["range"]
    return float(low), float(high)


def _accepted(method: str, model_type: str) -> Mapping[str, Any]:
    usual: Mapping[str, Any] = packaged.shared(ACCEPTANCE)[method]
    return next((one for one in usual.get("models", []) if model_type in one["model_type"]), usual)


def tuned(framework: str, version: tuple[int, ...], gpu: str, dtype: str, experts: Array, width: Array) -> Array:
    """1.0 where a framework ships Triton block sizes tuned for a GPU and so many experts of a rank, so wide on a rank;
    else 0.0 [call]. Without them it takes those of a plain rule, which can be two to four times slower.

    `gpu` is its registry name. Versions between those read count as the one before. Files are named by 8-bit and
    4-bit types only: the 16-bit ones share theirs.
    """
    return np.asarray(np.isin(_number(experts, width), _layers(framework, version, gpu, dtype)), np.float64)


@lru_cache(maxsize=1024)
def _layers(framework: str, version: tuple[int, ...], gpu: str, dtype: str) -> Array:
    """One number a layer that has a file."""
    of_gpu = packaged.shared(TUNED)["files"].get(framework, {}).get(gpu, {})
    by_version: Mapping[str, Any] = next(
        (of_gpu[kind] for kind in (dtype, *SIXTEEN_BIT.get(dtype, ())) if kind in of_gpu), {}
    )
    found = [layer for name, layers in by_version.items() if version_of(name) <= version for layer in layers]
    return _number(*np.array(found, np.float64).reshape(-1, 2).T)


def _number(experts: Array, width: Array) -> Array:
    return np.asarray(experts * 2.0**24 + width)

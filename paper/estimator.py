"""The paper's multilayer perceptron in numpy: log1p of the features in, sigmoid efficiency out.

Weights are from our training of the published recipe (`paper/training`), as safetensors that carry the kernel's name
and the order of its features. Each BatchNorm is an affine map before a Linear, so training folds it into that Linear.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open

from paper.demand import Array
from paper.hardware import Hardware, find
from paper.kernels import KERNELS, features, kernel, latency_us
from pipewave.errors import BadFile, UnknownKernel
from pipewave.files import packaged

if TYPE_CHECKING:
    from pipewave.gpus import GPU

FOLDER = Path(__file__).parent / "weights"
Weights = NDArray[np.float32]
Model = Literal["mean", "p80", "public"]


@dataclass(frozen=True, slots=True)
class Mlp:
    """Linear-ReLU layers and a sigmoid; `order` names the inputs."""

    order: tuple[str, ...]
    weights: tuple[Weights, ...]
    biases: tuple[Weights, ...]

    def efficiency(self, found: Mapping[str, ArrayLike]) -> Array:
        """Predicted `overall_perf`, shaped like the features."""
        hidden = np.log1p(np.stack([np.asarray(found[name], dtype=np.float32) for name in self.order], axis=-1))
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(hidden @ weight + bias, 0)
        logit = (hidden @ self.weights[-1] + self.biases[-1])[..., 0].astype(np.float64)
        return np.asarray(1 / (1 + np.exp(-logit)))


@lru_cache(maxsize=32)
def trained(name: str, model: Model = "mean") -> Mlp:
    """The shipped estimator of a kernel.

    "mean" and "p80" (the "performance ceiling": four kernels in five are slower) are trained on the paper's own rows;
    "public" on other people's rows of the families whose rows the paper's authors never released.
    """
    wanted = kernel(name)
    shipped = FOLDER / f"{name}_{model}.safetensors"
    if not shipped.is_file():
        raise UnknownKernel(f"no {model!r} weights of the paper's estimator for {name!r}: {_choices()}", field="kernel")
    packaged.check(shipped)
    mlp = load(shipped)
    if mlp.order != wanted.order:
        raise BadFile(f"{shipped.name}: its features are not those of {name!r}")
    return mlp


def load(path: Path) -> Mlp:
    """Read weights; raises BadFile when they are not whole or not ours."""
    try:
        with safe_open(path, framework="numpy") as archive:
            order = tuple(json.loads((archive.metadata() or {})["features"]))
            layers = range(sum(key.startswith("weight.") for key in archive.keys()))  # noqa: SIM118  no iterator
            weights = tuple(archive.get_tensor(f"weight.{layer}") for layer in layers)
            biases = tuple(archive.get_tensor(f"bias.{layer}") for layer in layers)
    except (OSError, SafetensorError, KeyError, ValueError) as fault:
        raise BadFile(f"{path.name}: not a readable weights file of this estimator ({fault})") from fault
    return Mlp(order=order, weights=weights, biases=biases)


def _choices() -> str:
    shipped = [path.stem for path in FOLDER.glob("*.safetensors")]
    return "shipped are " + ", ".join(sorted(name for name in shipped if name.rpartition("_")[0] in KERNELS))


def predict(name: str, hardware: str | Hardware | GPU, *, model: Model = "mean", **shape: Any) -> Array:
    """Latency in µs of calls as `features` takes them; raises UnknownKernel where no such weights are shipped."""
    mlp, hw = trained(name, model), find(hardware)
    found = features(name, hw, **shape)
    return latency_us(name, hw, found, mlp.efficiency(found))

"""Learned residuals over the physical estimate: small MLP ensembles, evaluated in numpy from safetensors.

A net answers, per call, the logarithm of measured over base time, and the logarithm of the scale of its own error. A
second net of the same format, the ceiling, sees neither stack nor implementation and answers a low quantile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile
from pipewave.files import packaged
from pipewave.nets.layers import ACTIVATIONS, Floats, Inputs, Layers, Named, Product, ScalarNet, inputs_of
from pipewave.nets.weights_metadata import WeightsMetadata, metadata_of
from pipewave.physics.arith import ARRAY, Arith

Members = Sequence[float] | NDArray[np.float64]  # of one call, or [member, call]

SCHEMA = 1
SHIPPED = packaged.ROOT / "data" / "weights"
UNKNOWN = "?"  # the category of stacks, implementations and types never seen in training
WASTED = 8_000  # zeros among the weights of a layer that cost what one product more does
UNTRAINED_SCALE = 0.35  # interval half-width in log time before any training, divided by the default quantile


@dataclass(frozen=True, slots=True)
class Residual:
    """Log residual and log-time scale of its error: arrays over calls, or floats of one."""

    mean: Any
    scale: Any


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """An ensemble of MLPs with shared inputs."""

    features: tuple[str, ...]
    categories: Mapping[str, Mapping[str, int]]
    weights: tuple[Floats, ...]  # lead with the member axis
    biases: tuple[Floats, ...]  # hold the standardisation
    tables: Mapping[str, Floats]  # category → [member, code, first hidden layer]
    activation: str

    def __call__(self, features: Named | Inputs, codes: Mapping[str, str], units: Floats | None = None) -> Residual:
        """Evaluate a batch; `features` must hold every name of `self.features`, `codes` are constant over it."""
        wide = self._outputs(features, codes, units).astype(np.float64)
        return merged(wide[..., 0], wide[..., 1], ARRAY)

    def with_units(self, inputs: Inputs, codes: Mapping[str, str]) -> tuple[Residual, Floats]:
        """The same, and the last hidden units, [member, call, unit]: calls that a net takes for alike are near."""
        last = self.weights[-1]
        units = np.empty((len(last), len(inputs.varying), last.shape[1]), np.float32)
        return self(inputs, codes, units), units

    def mean(self, features: Named | Inputs, codes: Mapping[str, str]) -> NDArray[np.float64]:
        """The mean alone, of a net whose scale means nothing."""
        out = self._outputs(features, codes)[..., 0]
        return np.asarray(np.add.reduce(out, dtype=np.float64) * (1.0 / len(out)))

    def codes(self, codes: Mapping[str, str]) -> tuple[str, ...]:
        """The categories that it looks at, in its order."""
        return tuple(codes.get(name, UNKNOWN) for name in self.tables)

    def inputs(self, features: Named) -> Inputs:
        """The features of many calls as it takes them. BadFile where one is lacking."""
        return inputs_of(features, self.features)

    def _outputs(self, features: Named | Inputs, codes: Mapping[str, str], units: Floats | None = None) -> Floats:
        inputs = features if isinstance(features, Inputs) else self.inputs(features)
        layers = layers_under(self, self.codes(codes), inputs.places, inputs.constant)
        return layers.outputs(inputs.varying, units)


@lru_cache(maxsize=4096)
def first_bias(net: Net, codes: tuple[str, ...]) -> Floats:
    """The first layer's biases with what the categories add, [member, 1, hidden]."""
    bias = net.biases[0]
    for (name, table), value in zip(net.tables.items(), codes, strict=True):
        code = net.categories[name].get(value, 0)
        bias = bias + table[:, code : code + 1]
    return bias


@lru_cache(maxsize=256)  # a copy of the first layer each
def layers_under(
    net: Net, codes: tuple[str, ...], places: tuple[int, ...], constant: tuple[tuple[int, float], ...]
) -> Layers:
    """The layers of the net for calls of constant categories, with features at `places` and others of one value."""
    weight, bias = net.weights[0], first_bias(net, codes).astype(np.float64)
    for place, value in constant:
        bias += value * weight[:, place : place + 1]
    return Layers((_with_bias(weight[:, places], bias.astype(np.float32)), *_further(net)), net.activation)


@lru_cache(maxsize=128)
def _further(net: Net) -> tuple[Floats, ...]:
    return tuple(_with_bias(*layer) for layer in zip(net.weights[1:], net.biases[1:], strict=True))


def _with_bias(weight: Floats, bias: Floats) -> Floats:
    return np.concatenate((weight, bias), axis=1)


def merged(means: Members, logs: Members, xp: Arith) -> Residual:
    """Members to one answer: mean of means; their disagreement widens the scale. Members of arrays or of floats."""
    share = 1.0 / len(means)
    mean, variance = sum(means) * share, 0.0
    for each, log in zip(means, logs, strict=True):
        off, width = each - mean, xp.minimum(xp.maximum(log, -8.0), 3.0)
        variance = variance + (xp.exp(2.0 * width) + off * off)
    return Residual(mean, xp.sqrt(variance * share))


def scalar_net(
    nets: Sequence[Net], codes: Sequence[Mapping[str, str]], features: tuple[str, ...] | None = None
) -> ScalarNet:
    """Nets that are `alike`, under constant categories, as one of all their members; `features`: what it is given."""
    features = features or nets[0].features
    ((weight, given, found),), *later = _layers(tuple(nets), features)
    weight = weight.copy()
    biases = [first_bias(net, net.codes(known)).ravel() for net, known in zip(nets, codes, strict=True)]
    weight[-1, weight[-1] == 0.0] = np.concatenate(biases)
    write = Struct(f"{len(features) + 1}f").pack_into
    return ScalarNet(features, itemgetter(*features), [[(weight, given, found)], *later], nets[0].activation, write)


@lru_cache(maxsize=64)
def _layers(nets: tuple[Net, ...], features: tuple[str, ...]) -> Sequence[Sequence[Product]]:
    """Products of all layers: what does not depend on categories. Biases of the first are 0, its ones to hand on 1."""
    members, last = [(net, i) for net in nets for i in range(len(net.biases[0]))], len(nets[0].weights) - 1
    one, unit = 1.0, float(ACTIVATIONS[nets[0].activation](np.ones(1, np.float32), out=np.empty(1, np.float32))[0])
    sizes = [np.array([net.weights[at].shape[1:] for net, _ in members]) for at in range(last + 1)]
    # Members share a matrix, with a one behind their units, where its zeros cost less than a product each.
    apart = [0 < at < last and s.sum(0).prod() - s.prod(1).sum() > WASTED * len(s) for at, s in enumerate(sizes)]
    rows: list[Any] = [[features.index(name) for name in nets[0].features]] * len(members)
    height, layers = len(features), []
    for at, size in enumerate(sizes):
        behind = int(at < last and apart[at + 1])
        ends = np.cumsum(size[:, 1] + behind) - behind
        columns = [slice(end - width, end) for width, end in zip(size[:, 1], ends, strict=True)]
        whole = np.zeros((height + 1, columns[-1].stop), np.float32)
        whole[-1] = 1.0 / one
        for (net, i), row, column in zip(members, rows, columns, strict=True):
            whole[row, column] = net.weights[at][i]
            whole[row.stop if apart[at] else -1, column] = net.biases[at][i] / one if at else 0.0
        parts = zip(rows, columns, strict=True) if apart[at] else [(slice(0, height), slice(0, columns[-1].stop))]
        given = [(slice(row.start, row.stop + 1), column) for row, column in parts]
        order: Any = "F" if at == last else "C"  # its sums are few
        layers.append([(whole[taken, found].copy(order), taken, found) for taken, found in given])
        height, rows, one = columns[-1].stop, columns, unit
    return layers


def alike(one: Net, other: Net) -> bool:
    """Whether two nets see the same features through as many layers, so that they can be evaluated together."""
    return (one.features, one.activation, len(one.weights)) == (other.features, other.activation, len(other.weights))


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The net of a low quantile."""

    net: Net
    shifts: Mapping[str, float]  # of held-out answers, to be one (log time), by `protocol|gpu`, protocol or "" for all
    # Default software that it was trained on, so that nothing tells implementations apart.
    plain: WeightsMetadata | None

    def __call__(self, features: Named | Inputs, codes: Mapping[str, str]) -> NDArray[np.float64]:
        """Log of the ceiling over the base time of those features."""
        return np.asarray(self.net.mean(features, codes) + self.shift(codes))

    def shift(self, codes: Mapping[str, str]) -> float:
        """What answers for those categories are moved by."""
        return self.most_specific(self.shifts, codes["protocol"], codes["gpu"])

    @staticmethod
    def most_specific(shifts: Mapping[str, float], protocol: str, gpu: str) -> float:
        """The shift for that GPU and protocol, else for the protocol, else for all."""
        return next((shifts[key] for key in (f"{protocol}|{gpu}", protocol, "") if key in shifts), 0.0)


@dataclass(frozen=True, slots=True)
class Trained:
    """A net with its ceiling and its card."""

    net: Net
    ceiling: Ceiling | None
    card: WeightsMetadata
    sha256: str = ""  # of the weights


@cache
def trained(name: str, folder: Path | None = None) -> Trained | None:
    """Load the net of that name, or None where none was trained. BadFile when it is corrupted.

    folder: of its weights; else that which PIPEWAVE_WEIGHTS names, of one's own training, or the shipped ones.
    """
    folder = folder or Path(os.environ.get("PIPEWAVE_WEIGHTS") or str(SHIPPED))
    path = folder / f"{name}.json"
    return load(path) if path.exists() else None


def load(path: Path) -> Trained:
    """Read a card and the weights beside it, checking schema and checksum."""
    from safetensors.numpy import load as parse

    try:
        card: dict[str, Any] = json.loads(packaged.content(path))
        known = card["schema"] == SCHEMA
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{path.name}: not a weights card ({error}); reinstall pipewave", field="weights") from error
    if not known:
        raise BadFile(f"{path.name}: schema {card['schema']}, this version reads {SCHEMA}", field="weights")
    weights = path.with_suffix(".safetensors")
    raw, found = packaged.hashed(weights)
    if found != card["sha256"]:
        raise BadFile(f"{weights.name}: checksum differs from its card; reinstall pipewave", field="weights")
    tensors = {name: np.asarray(tensor, np.float32) for name, tensor in parse(raw).items()}
    ceiling = None
    if spec := card.get("ceiling"):  # `plain` is the software by default, or true where that is the card's own
        given = spec.get("plain")
        plain = metadata_of(card if given is True else given) if given else None
        ceiling = Ceiling(_net(spec, tensors, "ceiling/"), dict(spec.get("shifts", {})), plain)
    return Trained(_net(card["net"], tensors, "net/"), ceiling, metadata_of(card), card["sha256"])


def _net(spec: Mapping[str, Any], tensors: Mapping[str, Floats], prefix: str) -> Net:
    depth = int(spec["layers"])
    categories = {name: {code: i for i, code in enumerate(known)} for name, known in spec["categories"].items()}
    return Net(
        features=tuple(spec["features"]),
        categories=categories,
        weights=tuple(tensors[f"{prefix}w{i}"] for i in range(depth)),
        biases=tuple(tensors[f"{prefix}b{i}"][:, None, :] for i in range(depth)),
        tables={name: tensors[f"{prefix}table_{name}"] for name in categories},
        activation=str(spec["activation"]),
    )

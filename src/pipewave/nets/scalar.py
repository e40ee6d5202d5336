"""A net for a few calls: constant categories folded into its biases, its members' first layers side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from pipewave.nets.layers import ACTIVATIONS, Floats, lacking
from pipewave.nets.nets import Net, first_bias


@dataclass(frozen=True, slots=True, eq=False)
class ScalarNet:
    """The first weights are [feature, member · hidden], later ones lead with the member axis unless there is one."""

    features: tuple[str, ...]
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    first: tuple[Floats, Floats]  # weights and bias
    later: tuple[tuple[Floats, Floats], ...]
    product: Callable[[Floats, Floats], Floats]
    activate: Callable[[Floats], Floats]  # in place

    def inputs(self, features: Mapping[str, Any]) -> tuple[Any, ...]:
        """The features of these names in the net's order."""
        try:
            return self.pick(features)
        except KeyError as missing:
            raise lacking(missing) from missing

    def __call__(self, inputs: Floats) -> tuple[Floats, Floats]:
        """Of inputs [call, feature]: last hidden units and outputs, [member, call, ·]; of one member [call, ·]."""
        product, active, (weight, bias) = self.product, self.activate, self.first
        hidden = inputs.dot(weight)
        if len(hidden) == 1:
            hidden = hidden.reshape(bias.shape)
        elif bias.ndim == 3:
            hidden = hidden.reshape(len(hidden), len(bias), -1).swapaxes(0, 1)
        hidden = hidden + bias
        units = hidden
        for weight, bias in self.later:
            units = active(hidden)
            hidden = product(units, weight)
            hidden += bias
        return units, hidden

    def members(self, inputs: Floats) -> tuple[list[list[float]], list[list[float]], Floats]:
        """Of each call, every member's mean and logarithm of the scale; and the last hidden units."""
        units, out = self(inputs)
        out = out.reshape(-1, len(inputs), out.shape[-1])
        return out[..., 0].T.tolist(), out[..., 1].T.tolist(), units


def scalar_net(
    nets: Sequence[Net], codes: Sequence[Mapping[str, str]], features: tuple[str, ...] | None = None
) -> ScalarNet:
    """Nets that are `alike`, each under constant categories, as one whose members are theirs in order.

    `features`: what it is given where that is more than the nets see.
    """
    one, features = nets[0], features or nets[0].features
    weights, biases = _layers(tuple(nets), features)
    first = _stacked([first_bias(net, net.codes(known)) for net, known in zip(nets, codes, strict=True)])
    product: Callable[..., Floats] = np.matmul
    if len(first) == 1:  # plain matrices: a third of the time
        first, biases, product = first[0], tuple(b[0, 0] for b in biases), np.dot
        weights = (weights[0], *(w[0] for w in weights[1:]))
    later = tuple(zip(weights[1:], biases, strict=True))
    active = ACTIVATIONS[one.activation]
    return ScalarNet(features, itemgetter(*features), (weights[0], first), later, product, active)


@lru_cache(maxsize=64)
def _layers(nets: tuple[Net, ...], features: tuple[str, ...]) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """Weights of all layers and biases after the first: what does not depend on categories, held once."""
    depth = range(1, len(nets[0].weights))
    seen = _stacked([net.weights[0] for net in nets])
    first = np.zeros((len(features), len(seen), seen.shape[2]), np.float32)  # what a net does not see weighs nothing
    first[[features.index(name) for name in nets[0].features]] = np.moveaxis(seen, 0, 1)
    weights = (_stacked([net.weights[i] for net in nets]) for i in depth)
    return (
        (first.reshape(len(first), -1), *weights),
        tuple(_stacked([net.biases[i] for net in nets]) for i in depth),
    )


def alike(one: Net, other: Net) -> bool:
    """Whether two nets see the same features through as many layers, so that they can be evaluated together."""
    return (one.features, one.activation, len(one.weights)) == (other.features, other.activation, len(other.weights))


def _stacked(members: Sequence[Floats]) -> Floats:
    """[member, ·, ·] of all nets; narrower layers get units that stay 0."""
    height, width = (max(part.shape[axis] for part in members) for axis in (1, 2))
    widened = [np.pad(p, ((0, 0), (0, height - p.shape[1]), (0, width - p.shape[2]))) for p in members]
    return np.ascontiguousarray(np.concatenate(widened))

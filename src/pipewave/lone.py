"""A net for one call at a time: constant categories folded into its biases, its members' first layers side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from pipewave.estimator import Floats, Net, activate, first_bias, lacking


@dataclass(frozen=True, slots=True, eq=False)
class LoneNet:
    """The first weights are [feature, member · hidden], the others lead with the member axis unless there is one."""

    features: tuple[str, ...]
    pick: Callable[[Mapping[str, float]], tuple[float, ...]]
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    product: Callable[[Floats, Floats], Floats]
    activation: str

    def inputs(self, features: Mapping[str, float]) -> Floats:
        """The features of these names in the net's order."""
        try:
            return np.array(self.pick(features), np.float32)
        except KeyError as missing:
            raise lacking(missing) from missing

    def __call__(self, x: Floats) -> list[list[float]]:
        """Of each output, what each member answers."""
        hidden = x.dot(self.weights[0]).reshape(self.biases[0].shape)
        hidden += self.biases[0]
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            hidden = self.product(activate(hidden, self.activation), weight)
            hidden += bias
        answers: list[list[float]] = hidden.reshape(-1, hidden.shape[-1]).T.tolist()
        return answers


def lone(nets: Sequence[Net], codes: Sequence[Mapping[str, str]]) -> LoneNet:
    """Nets that are `alike`, each under constant categories, as one whose members are theirs in order."""
    one, depth = nets[0], len(nets[0].weights)
    first_biases = [first_bias(net, net.codes(known)) for net, known in zip(nets, codes, strict=True)]
    biases = (_stacked(first_biases), *(_stacked([net.biases[i] for net in nets]) for i in range(1, depth)))
    first, *weights = (_stacked([net.weights[i] for net in nets]) for i in range(depth))
    side_by_side = np.ascontiguousarray(np.moveaxis(first, 0, 1).reshape(len(one.features), -1))
    product: Callable[..., Floats] = np.matmul
    if len(first) == 1:  # plain matrices: a third of the time
        weights, biases, product = [w[0] for w in weights], tuple(b[0, 0] for b in biases), np.dot
    return LoneNet(one.features, itemgetter(*one.features), (side_by_side, *weights), biases, product, one.activation)


def alike(one: Net, other: Net) -> bool:
    """Whether two nets see the same features through as many layers, so that they can be evaluated together."""
    return (one.features, one.activation, len(one.weights)) == (other.features, other.activation, len(other.weights))


def _stacked(members: Sequence[Floats]) -> Floats:
    """[member, ·, ·] of all nets; narrower layers get units that stay 0."""
    height, width = (max(part.shape[axis] for part in members) for axis in (1, 2))
    widened = [np.pad(p, ((0, 0), (0, height - p.shape[1]), (0, width - p.shape[2]))) for p in members]
    return np.ascontiguousarray(np.concatenate(widened))

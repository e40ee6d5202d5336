"""A net for one call at a time: constant categories folded into its biases, its members' first layers side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def lone(net: Net, codes: Mapping[str, str]) -> LoneNet:
    """A net under constant categories."""
    first = np.ascontiguousarray(np.moveaxis(net.weights[0], 0, 1).reshape(len(net.features), -1))
    weights, biases = net.weights[1:], (first_bias(net, net.codes(codes)), *net.biases[1:])
    product: Callable[..., Floats] = np.matmul
    if len(net.weights[0]) == 1:  # plain matrices: a third of the time
        weights, biases, product = tuple(w[0] for w in weights), tuple(b[0, 0] for b in biases), np.dot
    return LoneNet(net.features, itemgetter(*net.features), (first, *weights), biases, product, net.activation)

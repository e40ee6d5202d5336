"""What a public collection's meter reads beside the law of `power.py`, for the protocol `graph` alone.

AIConfigurator's rows are of operands of their own (constants, memory as it was) and of a meter that averages over a
second, part of which may be before the loop: neither is physics that another run shares. A small network a kind of
call, fitted to its steady rows (`python -m train power` writes `collected.json`), adds a share of the board's power to
what the law says. It knows groups of rows (generation, framework, implementation, type) and says nothing of others.
Prompts begin on a cold board: what its meter's second reaches back to is a share by their length, on every board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.physics.arith import ARRAY, Arith, clipped, log2

READINGS = Path(__file__).with_name("collected.json")
MOST_SHARE = 0.7  # of the board's power, that a reading adds or takes
MOST_TAKEN = 0.5  # of what the law says above idle: a meter that reads less saw another call


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A network of one hidden layer for a group of rows. Its inputs: shares of tensor peak, DRAM and L2 bandwidth over
    the base time, log2 of that time in µs, and `features` of the kernel family.
    """

    features: tuple[str, ...]
    low: Sequence[float]  # ends of what the fit saw of each input
    high: Sequence[float]
    weights: Sequence[Sequence[float]]  # [input, hidden]
    bias: Sequence[float]  # [hidden]
    out: Sequence[float]  # [hidden]
    constant: float
    spread: float  # half the 90 % interval of the logarithm of watts

    @classmethod
    def of(cls, row: Mapping[str, Any], group: str) -> Reading | None:
        """That of a kind's row for a group; None where it has none."""
        if (own := row["groups"].get(group)) is None:
            return None
        shared = {name: row[name] for name in ("low", "high", "weights", "out")}
        return cls(tuple(row["features"]), **shared, bias=own[:-1], constant=own[-1], spread=row.get("spread", 0.0))

    def above(
        self, law: Any, shares: Sequence[Any], base_s: Any, features: Mapping[str, Any], xp: Arith = ARRAY
    ) -> Any:
        """What the meter reads above the law, in shares of the board's power; `law`: what the law says above idle."""
        given = (*shares, log2(1e6 * base_s, xp), *(features[name] for name in self.features))
        inputs = [clipped(*each, xp) for each in zip(given, self.low, self.high, strict=True)]
        found = self.constant
        for bias, column, out in zip(self.bias, zip(*self.weights, strict=True), self.out, strict=True):
            hidden = sum((weight * value for weight, value in zip(column, inputs, strict=True)), bias)
            found = found + out * xp.maximum(hidden, 0.0)
        return xp.maximum(clipped(found, -MOST_SHARE, MOST_SHARE, xp), -MOST_TAKEN * law)


def start_share(falls: Sequence[Sequence[float]], features: Mapping[str, Any], xp: Arith = ARRAY) -> Any:
    """The share of the law above idle that a meter reads of prompts; of encoders all. `falls`: log2 of the tokens from
    and to which it falls, and the logarithm of what it falls to.
    """
    logs = [fall * clipped((features["keys"] - low) / (high - low), 0.0, 1.0, xp) for low, high, fall in falls]
    return xp.exp(features["causal"] * sum(logs))


def reading_of(net: str, group: str) -> Reading | None:
    """What the meter reads of calls that a net answers for; None where no rows tell."""
    row = next((row for row in packaged.shared(READINGS).values() if net in row["nets"]), None)
    return Reading.of(row, group) if row else None

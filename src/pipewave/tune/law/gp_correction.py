"""What the laws leave near the best, learned from launches that run alike: a Gaussian process on log residuals.

Sizes alone do not tell how a grid fills the GPU: 132 blocks and 133 are neighbours in size and not in time. So launches
are compared twice, by the logarithms of their sizes and by marks of how this configuration runs there (blocks of the
busiest SM, how full its first and its last wave are, trips, bytes moved over bytes needed, bytes in flight). Their
covariance is the sum of both, times how alike the configurations are. Only times near the best of a launch are learned
and corrected: the rest decides nothing.

Where it helps launches left out, marks also say how often sizes divide by two. Rows of scales whose stride is a whole
number of sectors begin a new sector all on the same trip, others on every trip: a loop may wait for memory eight times
as often, at the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.law.anchors import Anchors, Floats, Ints, Peaks
from pipewave.tune.law.smooth import Smoother, alike, kernel

NEAR = 2.0  # times the fastest up to which a configuration is learned from, and corrected
LEADING = 12  # configurations that are corrected at most
LENGTH, MARK_LENGTH = 1.5, 2.0  # in spreads of log sizes; in marks, which are about octaves
NOISE = 0.1  # against a variance of one for each of both covariances
NEIGHBOURS = 0.5  # what configurations within REACH octaves share beyond what all share
OWN = 0.2  # what is a configuration's own
REACH = 1.5
TWOS = 4.0  # divisions by two that tell, beyond those that all launches share
TWO = 0.5  # of a mark: what one of them is
HELPS = 0.95  # of the error at launches left out, at most, that they must leave
MOST_ROWS = 1200  # learned from: a fit costs the cube, a prediction each of them
CHUNK = 2048  # predictions at once


@dataclass(frozen=True, slots=True)
class GpCorrection:
    """`mean`, `spread` [d] of log sizes; `alike` [c, c]; learned from: `sizes` [r, d], `marks` [r, 9] or [r, 9 + d],
    `config`, `weights` [r]; `level`: log factor that all share; `twos`: divisions by two that sizes of all launches
    share [d], [0] where they are no marks.
    """

    mean: Floats
    spread: Floats
    alike: Floats
    sizes: Floats
    marks: Floats
    config: Ints
    weights: Floats
    level: float
    twos: Floats

    def log_factor(self, logs: Floats, marks: Floats, config: Ints) -> Floats:
        """Log correction [p] of the laws at log sizes [p, d], marks [p, 9] and configurations [p]."""
        sizes = (logs - self.mean) / self.spread
        marks = np.concatenate([marks, divided(logs, self.twos)], axis=1)
        out = np.empty(len(logs))
        for one in np.unique(config).tolist():
            weights = (self.weights * self.alike[one, self.config]).astype(np.float32)
            mine = np.flatnonzero(config == one)
            for start in range(0, len(mine), CHUNK):
                some = mine[start : start + CHUNK]
                like = _near_32(sizes[some], self.sizes, LENGTH) + _near_32(marks[some], self.marks, MARK_LENGTH)
                out[some] = like @ weights
        return out + self.level


def marks(counts: Floats, resident: Ints, peaks: Peaks) -> Floats:
    """How configurations run at launches [s, c, 6]: [s, c, 9], each scaled so that one is a difference that tells."""
    blocks, trips, longest, least, moved = (np.maximum(counts[..., i], 1e-3) for i in range(5))
    blocks, least, moved = np.maximum(blocks, 1.0), np.maximum(least, 1.0), np.maximum(moved, 1.0)
    busiest = np.ceil(blocks / peaks.sms)
    waves = np.ceil(busiest / resident)
    in_flight = least * np.minimum(1.0, peaks.sms * resident / blocks)
    return np.stack([
        np.log2(busiest), 2 * blocks / (peaks.sms * busiest), 2 * blocks / (peaks.sms * resident * waves),
        np.log2(waves),
        np.log2(np.minimum(busiest, resident)), 0.5 * np.log2(trips), 2 * np.log2(np.maximum(longest / trips, 1.0)),
        0.5 * np.log2(moved / least), 0.5 * np.log2(in_flight),
    ], axis=-1)  # fmt: skip


def learned(anchors: Anchors, peaks: Peaks, law_us: Floats, scale: Smoother) -> GpCorrection:
    """Learn what laws [s, c] leave near the fastest of each anchor; sizes are scaled as `scale` found best."""
    mean, spread = scale.mean, scale.spread
    like = alike(anchors.config, REACH, NEIGHBOURS, OWN).matrix
    launch, config = rows_of(anchors.us, law_us * np.exp(scale.log_factor(anchors.logs)))
    left = np.log(anchors.us[launch, config] / np.maximum(law_us[launch, config], 1e-3))
    level = float(left.mean())
    sizes, seen = (anchors.logs[launch] - mean) / spread, marks(anchors.counts, anchors.resident, peaks)[launch, config]
    tried = []
    for twos in (np.zeros(0), _twos(anchors.logs).min(axis=0)):
        of = sizes, np.concatenate([seen, divided(anchors.logs[launch], twos)], axis=1), config
        both = kernel(of[0], of[0], LENGTH) + kernel(of[1], of[1], MARK_LENGTH)
        covariance = both * like[config[:, None], config] + NOISE * np.eye(len(left))
        inverse: Floats = np.linalg.inv(covariance).astype(np.float64)
        weights = np.asarray(inverse @ (left - level))
        square = 0.0  # of the error at each launch by all others
        for one in np.unique(launch).tolist():
            mine = np.flatnonzero(launch == one)
            square += float(np.sum(np.linalg.solve(inverse[np.ix_(mine, mine)], weights[mine]) ** 2))
        tried.append((square, GpCorrection(mean, spread, like, *of, weights, level, twos)))
    return tried[tried[1][0] < HELPS * tried[0][0]][1]


def divided(logs: Floats, twos: Floats) -> Floats:
    """Marks of how often sizes [s, d] divide by two beyond what all share [d]: [s, d], none where [0]."""
    beyond = _twos(logs)[:, : len(twos)] - twos
    return np.asarray(TWO * np.clip(beyond, 0.0, TWOS))


def _twos(logs: Floats) -> Floats:
    """How often sizes of these logarithms [s, d] divide by two: [s, d]."""
    whole = np.maximum(np.rint(np.exp(logs)), 1.0).astype(np.int64)
    return np.asarray(np.log2((whole & -whole).astype(float)))


def rows_of(us: Floats, expected_us: Floats) -> tuple[Ints, Ints]:
    """Launches and configurations to learn from: those near a launch's fastest, and those expected there [s, c]: else
    a configuration that is never among the fast ones would be taken for as fast as its neighbours.
    """
    timed = np.isfinite(us)
    slower, expected = (each / each.min(axis=1, keepdims=True)
                        for each in (np.where(timed, us, np.inf), np.where(timed, expected_us, np.inf)))  # fmt: skip
    place = np.minimum(_place(slower), _place(expected))
    launch, config = np.nonzero((slower < NEAR) & (place < max(2, MOST_ROWS // len(us))))
    spread = np.linspace(0, len(launch) - 1, min(MOST_ROWS, len(launch))).astype(np.int64)  # over all launches
    return launch[spread], config[spread]


def _place(slower: Floats) -> Ints:
    """Place of each configuration among those of its launch, the fastest 0."""
    return np.asarray(slower.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable"))


@np.errstate(invalid="ignore")  # products set that flag for lanes of a vector that they do not use
def _near_32(a: Floats, b: Floats, length: float) -> NDArray[np.float32]:
    """As `smooth.kernel`, in single precision and by one product, for predictions: there are many."""
    left = np.column_stack([a / length, -0.5 * np.sum(a**2, axis=1) / length**2, np.ones(len(a))])
    right = np.column_stack([b / length, np.ones(len(b)), -0.5 * np.sum(b**2, axis=1) / length**2])
    exponent = left.astype(np.float32) @ right.astype(np.float32).T
    return np.asarray(np.exp(np.minimum(exponent, 0.0, out=exponent), out=exponent))

"""A bias of the first recordings, found in their repeats and taken out: some launches were timed longer than others.

Timed launches step through a cycle of the device's command queue: an entry is half of it, a second kernel of the same
entry a quarter. Where in the cycle a launch falls moves its time by a constant of 0.3 to 0.7 µs, however long the
kernel is. Recordings that time configurations in one fixed order (all without `meta["order"]`) keep a configuration at
its place through many rounds, so that the constant looks like a property of it: 5 to 10 % of an 8 µs launch. Some
configurations changed place between batches, which tells the constants. Later recordings shuffle every round.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lab.own_kernels.recording import ANCHOR, TEST, WAVE, Recording

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROUNDS = {TEST: (2, 2, 6), ANCHOR: (2, 2), WAVE: (2,)}  # rounds of each timed batch of those recordings, by role
NEAR = 1.4  # only launches this near a shape's best tell; slow configurations scatter more than the constant
CLIP_US = 1.5  # what is off by more was disturbed otherwise
PRIOR = 10.0  # launches that the whole recording's constant counts for


def places(recording: Recording) -> tuple[Ints, Ints]:
    """Return each row's place in its timed batch, and the batch (0, 1, … within its shape).

    Rounds go up in configuration number, so a round ends where the number does not grow.
    """
    place = np.zeros(len(recording.row_us), np.int64)
    batch = np.zeros_like(place)
    config = recording.row_config.astype(np.int64)
    for rows in _by_shape(recording):
        starts = np.flatnonzero(np.diff(config[rows], prepend=1 << 20) <= 0)
        ends = np.cumsum((0, *ROUNDS[int(recording.role[recording.row_shape[rows.start]])]))
        begin = starts[ends[ends < len(starts)]]
        number = np.arange(rows.stop - rows.start)
        batch[rows] = np.searchsorted(begin, number, "right") - 1
        place[rows] = number - begin[batch[rows]]
    return place, batch


def _by_shape(recording: Recording) -> list[slice]:
    edges = np.flatnonzero(np.diff(recording.row_shape, prepend=-1, append=-1)).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


def cycle(recording: Recording, place: Ints, batch: Ints) -> Floats:
    """Return [rows, 2 · batches]: cosine and sine of where in the cycle each launch falls, one pair a batch."""
    extra = np.zeros_like(place)
    if "SPLITS" in recording.meta["names"]:  # split decode launches a second kernel
        second = recording.configs[recording.row_config, recording.meta["names"].index("SPLITS")] > 1
        so_far = np.cumsum(second) - second
        start = np.flatnonzero(place == 0)
        extra = so_far - so_far[start][np.cumsum(place == 0) - 1]
    angle = (np.pi / 2) * ((2 * place + extra) % 4)
    mine = batch[:, None] == np.arange(batch.max(initial=0) + 1)
    return np.stack([np.cos(angle)[:, None] * mine, np.sin(angle)[:, None] * mine], axis=2).reshape(len(place), -1)


def settled_us(recording: Recording) -> Floats:
    """Return every row's µs with the cycle taken out; as recorded where rounds were shuffled."""
    us = recording.row_us.astype(float)
    if "order" in recording.meta or not len(us):
        return us
    x = cycle(recording, *places(recording))
    shapes = _by_shape(recording)
    sums = [_normal(recording, us, x, rows) for rows in shapes]
    alone = [_solve(gram, right, np.zeros(x.shape[1])) for gram, right in sums]
    usual = np.median(np.stack(alone).reshape(len(shapes), -1, 2).mean(axis=1), axis=0)
    for rows, (gram, right) in zip(shapes, sums, strict=True):
        us[rows] -= x[rows] @ _solve(gram, right, np.tile(usual, x.shape[1] // 2))
    return us


def _normal(recording: Recording, us: Floats, x: Floats, rows: slice) -> tuple[Floats, Floats]:
    """Normal equations of one shape: µs against the cycle, both less their mean over a configuration's launches."""
    keep = rows.start + np.flatnonzero(us[rows] < NEAR * us[rows].min())
    _, of, count = np.unique(recording.row_config[keep], return_inverse=True, return_counts=True)

    def within(value: Floats) -> Floats:
        return np.asarray(value - (np.bincount(of, value) / count)[of])

    left = np.clip(within(us[keep]), -CLIP_US, CLIP_US)
    columns = np.stack([within(column) for column in x[keep].T], axis=1)
    return columns.T @ columns, columns.T @ left


def _solve(gram: Floats, right: Floats, prior: Floats) -> Floats:
    return np.asarray(np.linalg.solve(gram + PRIOR * np.eye(len(gram)), right + PRIOR * prior))

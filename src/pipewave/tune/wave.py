"""Ours: one law a configuration, affine in the number of waves, over terms that the hardware is made of.

T(µs) = Σ θ_i · term_i with θ ≥ 0, fitted to relative error. Beyond the published bilinear law:

* a wave is SMs × resident blocks wide, not SMs wide;
* one law spans all waves, affine in them, so that no bucket is extrapolated by its own slope;
* terms of bytes (memory, L2) bound the time from below, whatever the grid;
* θ ≥ 0 over terms that grow with the work keeps every prediction positive and monotone;
* unequal blocks (causal attention, routed experts) enter by their mean and their longest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import Work

Floats = NDArray[np.float64]
TERMS = (
    "launch", "longest", "waves", "wave_trips", "busiest", "busiest_trips", "blocks", "block_trips", "memory", "l2",
    "idle", "tail", "resident",
)  # fmt: skip
GROUPS = {  # for ablation: what is left out
    "wave": (0, 1, 2, 3), "work": (6, 7), "busiest": (4, 5, 11, 12), "bytes": (8, 9, 10),
}  # fmt: skip


def terms(work: Work, sms: int, resident: Any) -> tuple[Any, ...]:
    """Return the terms of `TERMS`; numbers in, numbers out, arrays in, arrays out.

    `busiest` is the blocks of the SM that has most; `tail` the idle share of the last wave in trips; `resident` how
    full the SMs are, in trips: blocks that share an SM slow one another. Bytes are in units of about a microsecond.
    """
    blocks, trips, longest, dram, l2, idle = work
    slots = sms * resident
    waves = -(-blocks // slots)
    busiest = -(-blocks // sms)
    full = 0.5 * (busiest + resident - abs(busiest - resident)) / resident  # min(busiest, resident) / resident
    return (1.0, longest, waves, waves * trips, busiest, busiest * trips, blocks / sms, blocks * trips / sms,
            dram * 2.5e-7, l2 * 1e-7, idle / sms, (1.0 - blocks / (slots * waves)) * trips, full * trips)  # fmt: skip


def predict_us(work: tuple[Any, ...], sms: int, resident: Any, law: Any) -> Any:
    """Evaluate a law at one launch: the same sum as `terms` · law, term by term for speed."""
    blocks, trips, longest, dram, l2, idle = work
    slots = sms * resident
    waves = -(-blocks // slots)
    busiest = -(-blocks // sms)
    a, b, c, d, e, f, g, h, i, j, k, t, r = law
    full = 1.0 if busiest >= resident else busiest / resident
    return (a + b * longest + waves * (c + d * trips) + busiest * (e + f * trips) + blocks * (g + h * trips) / sms
            + dram * 2.5e-7 * i + l2 * 1e-7 * j + idle / sms * k
            + trips * ((1.0 - blocks / (slots * waves)) * t + full * r))  # fmt: skip


def design(work: Work, sms: int, resident: NDArray[np.int64]) -> Floats:
    """Stack the terms of shapes × configurations: [s, c, terms]."""
    columns = terms(work, sms, resident)
    size = np.broadcast_shapes(*(np.shape(column) for column in columns), (1, len(resident)))
    return np.stack([np.broadcast_to(np.asarray(column, float), size) for column in columns], axis=-1)


def moments(x: Floats, us: Floats, weight: Floats | float = 1.0) -> tuple[Floats, Floats]:
    """Normal equations [c, p, p], [c, p] of the relative error Σ (weight · (law/us − 1))²; NaN times are skipped."""
    weight = np.where(np.isfinite(us), weight, 0.0)
    scaled = x * (weight / np.where(np.isfinite(us), us, 1.0))[..., None]
    return np.einsum("scp,scq->cpq", scaled, scaled), np.einsum("scp,sc->cp", scaled, weight)


def nonnegative(gram: Floats, right: Floats, sweeps: int = 150) -> Floats:
    """Solve min θᵀGθ − 2bᵀθ, θ ≥ 0, for many configurations at once, by coordinate descent: [c, p]."""
    scale = np.sqrt(np.einsum("cpp->cp", gram)) + 1e-30
    g, b = gram / scale[:, :, None] / scale[:, None], right / scale
    theta = np.zeros_like(b)
    for _ in range(sweeps):
        for j in range(b.shape[1]):
            theta[:, j] = np.maximum(0.0, theta[:, j] + b[:, j] - np.einsum("cp,cp->c", g[:, j], theta))
    return np.asarray(theta / scale)


def fit(parts: list[tuple[Floats, Floats, Floats | float]], keep: tuple[int, ...] = tuple(range(len(TERMS)))) -> Floats:
    """Fit θ [c, terms] to several (design, µs, weight) parts; terms outside `keep` stay zero."""
    sums = [moments(x[..., list(keep)], us, weight) for x, us, weight in parts]
    gram, right = (np.sum([pair[i] for pair in sums], axis=0) for i in (0, 1))
    law = np.zeros((len(right), len(TERMS)))
    law[:, list(keep)] = nonnegative(gram, right)
    return law

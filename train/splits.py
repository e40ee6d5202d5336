"""Which rows train and which are scored, by name: `fold:0`, `logo:H100`, `lofo:ada`, `few:L40S:3`, `ship`, `all`.

`ver:1` leaves out a third of the versions that held-out tables do not count, and some others on single GPUs.
`few:L40S:3@dtype=bf16,protocol=graph` is that split of those rows only: as if the others had never been measured.
`few:L40S:3+dtype=bf16,protocol=graph` draws and scores those rows only: other GPUs train with all they have.
Whole groups (GEMM (n, k), head layouts, MoE shapes) are held out, never single rows. Twins are one GPU.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corpus.select import HELD_OUT
from pipewave.software.stacks import framework, version
from train.rows import UNKNOWN, Ints, Rows

SCORED = (0, 1, 2, 3, 4)
UNSEEN = f"fold:{HELD_OUT}"  # what shipped weights are scored on
TWINS = (("H100", "H800"), ("B200", "GB200"), ("B300", "GB300"))
FAMILIES = ("ampere", "ada", "hopper", "blackwell", "blackwell_rtx")
WHOLE = ("fold", "logo", "lofo")  # kinds of splits that are no draws
FEW, DRAWS = 100, 5
VERSIONS = 3  # parts of the older versions, each left out altogether once
ELSEWHERE = 6  # one in so many (GPU, version) pairs besides: versions known from other GPUs only
FEW_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Row indices to train on (repeats count as weight) and to score."""

    name: str
    train: Ints
    score: Ints


def twins(gpu: str) -> tuple[str, ...]:
    """The GPUs that are left out together with this one, itself first."""
    pair = next((pair for pair in TWINS if gpu in pair), (gpu,))
    return (gpu, *(other for other in pair if other != gpu))


def by_name(name: str, rows: Rows, few_share: float = FEW_SHARE) -> Split:
    """The split of that name. ValueError when the name or what it names is unknown.

    `few_share`: of an epoch that the few rows of a new GPU fill, by repetition.
    """
    whole, _, conditions = name.partition("@")
    if conditions:
        kept = np.flatnonzero(meet(rows, conditions.split(",")))
        split = by_name(whole, rows.take(kept), few_share)
        return Split(name, kept[split.train], kept[split.score])
    kind, _, rest = name.partition(":")
    builders: dict[str, Callable[[], Split]] = {
        "fold": lambda: _held_out(name, rows.fold == int(rest)),
        "logo": lambda: _held_out(name, _is(rows, "gpu", twins(rest))),
        "lofo": lambda: _held_out(name, _is(rows, "family", (rest,))),
        "few": lambda: few_shot(name, rows, few_share),
        "ver": lambda: _held_out(name, left_out_software(rows, int(rest)), rows.fold == HELD_OUT),
        "ship": lambda: _held_out(name, rows.fold == HELD_OUT),
        "all": lambda: Split(name, np.arange(len(rows)), np.arange(0)),
    }
    if kind not in builders:
        raise ValueError(f"split {name!r}: must be one of {', '.join(builders)}")
    split = builders[kind]()
    if not len(split.train):
        raise ValueError(f"split {name!r}: leaves no rows to train on")
    return split


def expand(patterns: Iterable[str], rows: Rows) -> list[str]:
    """Split names of patterns: `fold:*`, `logo:*`, `lofo:*`, `few:*` stand for all that these rows allow."""
    return [name for pattern in patterns for name in (_all(pattern[:-2], rows) if pattern[-2:] == ":*" else [pattern])]


def few_shot(name: str, rows: Rows, share: float = FEW_SHARE) -> Split:
    """`few:GPU:draw`: the GPU's whole family is left out but for 100 of its rows, whose groups are not scored.

    Where a GPU has fewer groups than rows to draw, the rows come from a random half of its groups: otherwise hardly
    a group would be left to score. Only rows that held-out tables count are drawn and scored.
    """
    whole, _, conditions = name.partition("+")
    _, gpu, draw = whole.split(":")
    candidates = np.flatnonzero(_is(rows, "gpu", (gpu,)) & meet(rows, conditions.split(",")) & _counted(rows))
    if not len(candidates):
        raise ValueError(f"split {name!r}: draws from no rows")
    family = rows.columns["family"].text()[candidates[0]]
    rng = np.random.default_rng(int(draw))
    drawable = _drawable(rows.group[candidates], rng)
    drawn = rng.choice(candidates[drawable], size=min(FEW, int(drawable.sum())), replace=False)
    others = np.flatnonzero(~_is(rows, "family", (str(family),)))
    repeats = max(1, round(share * len(others) / (1 - share) / len(drawn)))
    score = candidates[~np.isin(rows.group[candidates], rows.group[drawn])]
    return Split(name, np.concatenate([others, np.tile(drawn, repeats)]), score)


def left_out_software(rows: Rows, part: int) -> NDArray[np.bool_]:
    """Rows of versions left out altogether, and of others that are then known from other GPUs only.

    Versions that tables count anywhere (on a GPU: there) stay in: members may start from weights that know them.
    """
    gpu, stack = rows.columns["gpu"].codes, rows.columns["stack"].codes
    counted = _counted(rows)
    pair = gpu * len(rows.columns["stack"].values) + stack
    older, older_here = (~np.isin(codes, np.unique(codes[counted])) for codes in (stack, pair))
    names = rows.columns["stack"].values
    mine = _every_third(names, np.unique(stack[older]), part)[stack]
    first = {second: name for name, second in TWINS}  # twins are left out together
    gpus = [first.get(name, name) for name in rows.columns["gpu"].values]
    drawn = [[zlib.crc32(f"{card}|{name}".encode()) for name in names] for card in gpus]
    places = np.array(drawn) % (ELSEWHERE * VERSIONS)
    return np.asarray((older & mine) | (older_here & (places[gpu, stack] == part)))


def _every_third(names: Sequence[str], older: Ints, part: int) -> NDArray[np.bool_]:
    """Of each framework's older versions, every third in their order, [code]: neighbours are not left out together."""
    ranked = sorted((framework(names[code]), version(names[code]), code) for code in older.tolist())
    order = {code: sum(one == two for one, *_ in ranked[:at]) for at, (two, _, code) in enumerate(ranked)}
    return np.array([order.get(code, -1) % VERSIONS == part and code in order for code in range(len(names))])


def _drawable(groups: Ints, rng: np.random.Generator) -> NDArray[np.bool_]:
    unique = np.unique(groups)
    if len(unique) >= FEW:
        return np.ones(len(groups), bool)
    return np.isin(groups, rng.choice(unique, size=max(1, len(unique) // 2), replace=False))


def _held_out(name: str, held: NDArray[np.bool_], unseen: NDArray[np.bool_] | bool = False) -> Split:
    """Without rows that are scored, and without others that shipped weights never see, so that both are unknown."""
    if not held.any():
        raise ValueError(f"split {name!r}: holds out no rows")
    return Split(name, np.flatnonzero(~held & ~np.asarray(unseen)), np.flatnonzero(held))


def meet(rows: Rows, conditions: Iterable[str]) -> NDArray[np.bool_]:
    """Rows of which every `column=value` is true. ValueError for an unknown column."""
    pairs = [condition.partition("=") for condition in conditions if condition]
    kept = np.ones(len(rows), bool)
    for column, _, value in pairs:
        if column not in ("fold", *rows.columns):
            raise ValueError(f"{column}={value}: column must be one of fold, {', '.join(rows.columns)}")
        kept &= rows.fold == int(value) if column == "fold" else _is(rows, column, (value,))
    return kept


def _counted(rows: Rows) -> NDArray[np.bool_]:
    return _is(rows, "counted", ("yes",)) if "counted" in rows.columns else np.ones(len(rows), bool)


def _is(rows: Rows, column: str, values: Iterable[str]) -> NDArray[np.bool_]:
    wanted = [code for code, value in enumerate(rows.columns[column].values) if value in set(values)]
    return np.isin(rows.columns[column].codes, wanted)


def _present(rows: Rows, column: str) -> list[str]:
    return [value for value in np.unique(rows.columns[column].text()) if value != UNKNOWN]


def _all(kind: str, rows: Rows) -> list[str]:
    gpus, families = _present(rows, "gpu"), _present(rows, "family")
    if kind == "fold":
        return [f"fold:{number}" for number in SCORED]
    if kind == "lofo":
        return [f"lofo:{family}" for family in families]
    if kind == "ver":
        older = [name for name in range(VERSIONS) if left_out_software(rows, name).any()]
        return [f"ver:{number}" for number in older]
    if kind == "logo":
        seconds = {pair[1] for pair in TWINS if pair[0] in gpus}
        return [f"logo:{gpu}" for gpu in gpus if gpu not in seconds]
    return [f"few:{gpu}:{draw}" for gpu in gpus for draw in range(DRAWS)]

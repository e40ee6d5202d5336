"""What published disaggregated servers say of drafts and of handing over: `python -m studies.published_pools ANSWERS`.

ANSWERS are what `python -m studies.published --needs --only disaggregated --answers ANSWERS` wrote.

Drafts: a step's time over measured time per token is the tokens it made; time per token was predicted with the usual
acceptance, and rows of the same engine, GPU and type that do not draft say how far a step itself is off. Each group is
also predicted from the others alone: the median of what theirs imply. One probability that a draft is accepted when
those before it were, for all positions, is fitted to all of them, and scored on each group with the others' (a group
that implies less than a token a step has other loads with drafts than without, and is left out).

Handing over: under light load the first token waits for prefill, the cache's way and what else handing over takes. Of
a grid of times that the answers' own is replaced by, the one with the least mean error of groups is taken, and each
group is scored with the one that the engine's other groups would take.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

from pipewave.published.published_pools import handover_ms
from pipewave.simulate.speculative import of
from studies.published_rows import Row, corpus, read

MOST_FLIGHT, MOST_MS = 64, 1200.0  # light load: requests in flight, and a predicted first token without a queue
GRID_MS = tuple(range(0, 320, 20))
ACCEPTED = tuple(percent / 100 for percent in range(20, 100))
DRAFTED = re.compile(r"(\d) tokens drafted")
Key = tuple[str, str, str]
Pairs = dict[Key, list[tuple[float, float]]]
Logs = dict[int, list[float]]  # by tokens drafted: logarithms of predicted over measured time per token


def main() -> None:
    """Print a line for each group and number of drafts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    options = parser.parse_args()
    answers = {one["id"]: one for one in map(json.loads, options.answers.read_text("utf-8").splitlines())}
    rows = read(options.data or corpus())
    groups = by_group(rows, answers)
    for drafts in sorted({drafts for logs in groups.values() for drafts in logs if drafts}):
        for key, made in implied(groups, drafts).items():
            others = [tokens for other, tokens in implied(groups, drafts).items() if other != key]
            guess = f"{median(others):.2f} by the other groups" if others else "no other group"
            usual = of({"method": "mtp", "tokens": drafts}).mean
            print(f"{' '.join(key):28} {drafts} drafted: {made:.2f} tokens a step, {guess}, {usual:.2f} as shipped")
    show_acceptance(groups)
    light = first_tokens(rows, answers)
    for engine in sorted({key[0] for key in light}):
        own = {key: pairs for key, pairs in light.items() if key[0] == engine}
        print(f"{engine:28} handing over: {best_ms(own)} ms, error {100 * error(own, best_ms(own)):.0f} %", end="")
        print(f", {left_out(own)}, {100 * error(own, 0):.0f} % without")


def show_acceptance(groups: Mapping[Key, Logs]) -> None:
    """The probability that all groups imply, and how far off tokens a step are with the others' and as shipped."""
    made = tokens_made(groups)
    if len(made) < 2:
        return  # of a few answers: no group could be left out
    left = {key: accepted({other: one for other, one in made.items() if other != key}) for key in made}
    for key, own in made.items():
        print(f"{' '.join(key):28} accepted: {accepted({key: own}):.2f}, {left[key]:.2f} by the other groups")
    off = {
        key: abs(mean(math.log(_tokens(drafts, left[key]) / tokens) for drafts, tokens in own.items()))
        for key, own in made.items()
    }
    widest = sorted(off.values())[max(math.ceil(0.9 * len(off)) - 1, 0)]
    shipped = mean(
        abs(math.log(of({"method": "mtp", "tokens": drafts}).mean / tokens))
        for own in made.values()
        for drafts, tokens in own.items()
    )
    print(
        f"accepted: {accepted(made):.2f} by all groups, tokens a step {100 * mean(off.values()):.0f} % off left out, "
        f"nine in ten within {100 * widest:.0f}, {100 * shipped:.0f} as shipped"
    )


def tokens_made(groups: Mapping[Key, Logs]) -> dict[Key, dict[int, float]]:
    """Tokens a step that groups imply, by tokens drafted."""
    made: dict[Key, dict[int, float]] = {}
    for drafts in sorted({drafts for logs in groups.values() for drafts in logs if drafts}):
        for key, tokens in implied(groups, drafts).items():
            if tokens > 1.0:
                made.setdefault(key, {})[drafts] = tokens
    return made


def accepted(made: Mapping[Key, Mapping[int, float]]) -> float:
    """The probability of the grid with the least mean error of groups."""
    return min(ACCEPTED, key=lambda rate: mean(_error(own, rate) for own in made.values()))


def _error(own: Mapping[int, float], rate: float) -> float:
    """Mean absolute logarithm of predicted over implied tokens."""
    return mean(abs(math.log(_tokens(drafts, rate) / tokens)) for drafts, tokens in own.items())


def _tokens(drafts: int, rate: float) -> float:
    return of({"method": "mtp", "tokens": drafts, "acceptance": rate}).mean


def first_tokens(rows: Iterable[Row], answers: Mapping[str, Mapping[str, Any]]) -> Pairs:
    """(predicted without handing over, measured) milliseconds until first tokens under light load, by group."""
    groups: Pairs = {}
    for row in rows:
        answer = answers.get(row.id, {})
        if "ttft_ms" in answer and "ttft_ms" in row.measured and row.case["concurrency"] <= MOST_FLIGHT:
            bare = answer["ttft_ms"] - handover_ms(row.group.engine)
            if bare < MOST_MS:
                key = (row.group.engine, row.group.gpu, row.group.precision)
                groups.setdefault(key, []).append((bare, row.measured["ttft_ms"]))
    return groups


def left_out(groups: Pairs) -> str:
    """The error of groups with the time that the others would take."""
    if len(groups) < 2:
        return "no other group"
    own = [error({key: groups[key]}, best_ms({k: v for k, v in groups.items() if k != key})) for key in groups]
    return f"{100 * mean(own):.0f} % left out"


def error(groups: Pairs, handing_ms: float) -> float:
    """Mean over groups of the mean relative error, were handing over to take so long."""
    return mean(mean(abs((bare + handing_ms) / seen - 1) for bare, seen in pairs) for pairs in groups.values())


def best_ms(groups: Pairs) -> int:
    """The time of the grid with the least error."""
    return min(GRID_MS, key=lambda ms: error(groups, ms))


def by_group(rows: Iterable[Row], answers: Mapping[str, Mapping[str, Any]]) -> dict[Key, Logs]:
    """Logarithms of predicted over measured TPOT by group and tokens drafted; rows without an answer are left out."""
    groups: dict[Key, Logs] = {}
    for row in rows:
        answer = answers.get(row.id, {})
        if "tpot_ms" in answer and "tpot_ms" in row.measured:
            found = DRAFTED.search(" ".join(answer["notes"]))
            logs = groups.setdefault((row.group.engine, row.group.gpu, row.group.precision), {})
            off = math.log(answer["tpot_ms"] / row.measured["tpot_ms"])
            logs.setdefault(int(found.group(1)) if found else 0, []).append(off)
    return groups


def implied(groups: Mapping[Key, Logs], drafts: int) -> dict[Key, float]:
    """Tokens a step that drafts so many has made, of each group that has rows with and without."""
    usual = of({"method": "mtp", "tokens": drafts}).mean
    return {
        key: usual * math.exp(median(logs[drafts]) - median(logs[0]))
        for key, logs in groups.items()
        if drafts in logs and 0 in logs
    }


if __name__ == "__main__":
    main()

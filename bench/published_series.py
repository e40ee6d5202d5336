"""Series of published runs that drafted and do not say so.

A table of published runs holds series: one server at many loads. Where two series of a table's deployment, split and
version ran at the same loads, and at each of them one makes its tokens sooner and its first tokens later, it drafts: a
faster server would have both sooner. Prompts then pass the drafting layers too, and a scheduler that looks every so
many steps looks later, for steps that draft are longer. The corpus doubts a run that has a slower twin for the same
reason; this reads the runs of the same series that have no twin, too. Only measured times are read, none predicted.

One series of the corpus is such: DeepSeek-R1 in FP8 under SGLang on eight B200s, 25 runs, all eleven twins of which
agree. Its script of public launches (InferenceX benchmarks/dsr1_fp8_b200_mtp.sh) drafts two tokens and takes eight GPUs
only, up to 512 requests. At the loads where no twin ran, its first tokens come later than those of four GPUs do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations

NAME = re.compile(r" id=(?P<before>.*)_\d+x\d+_c\d+(?P<after>.*)$")
COUNTED = re.compile(r"_\d+$")  # the number of a row in a table of its own
PLACE = "engine", "version", "gpu", "model", "precision", "tp", "pp", "ep", "dp", "isl", "osl", "spread", "concurrency"
ARTEFACT = "artefact"  # in what the corpus doubts: a row whose split is not what ran
FEWEST = 5  # loads at which both ran
Line = Mapping[str, str]


def series(line: Line) -> str:
    """The series of a row: its source's name of it, less its lengths, load and number; empty where it has none."""
    found = NAME.search(line["url"])
    return found["before"] + COUNTED.sub("", found["after"]) if found else ""


def drafting(lines: Iterable[Line]) -> frozenset[str]:
    """The series that drafted: at all loads, of several, where another one ran, sooner tokens and later first ones."""
    seen: dict[tuple[str, str], list[bool]] = {}
    for one, other, drafted in _twins(lines):
        seen.setdefault((one, other), []).append(drafted)
    return frozenset(one for (one, _), marks in seen.items() if len(marks) >= FEWEST and all(marks))


def _twins(lines: Iterable[Line]) -> Iterator[tuple[str, str, bool]]:
    """Every two runs of two series at one load, both ways round, and whether the first drafted for all they show."""
    places: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        if series(line) and ARTEFACT not in line["doubt"] and line["ttft_ms"] and line["tpot_ms"]:
            places.setdefault(tuple(line[name] for name in PLACE), []).append(line)
    for runs in places.values():
        for one, other in permutations(runs, 2):
            if series(one) != series(other) and one["tpot_ms"] != other["tpot_ms"]:  # equal: one run in two tables
                yield series(one), series(other), _drafted(one, other)


def _drafted(one: Line, other: Line) -> bool:
    sooner = float(one["tpot_ms"]) < float(other["tpot_ms"])
    return sooner and float(one["ttft_ms"]) > float(other["ttft_ms"])

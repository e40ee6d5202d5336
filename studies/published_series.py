"""Series of published runs that drafted and do not say so.

A table of published runs holds series: one server at many loads. Where two series of a table's deployment, split and
version ran at the same loads, and at each of them one makes its tokens sooner and its first tokens later, it drafts: a
faster server would have both sooner. Prompts then pass the drafting layers too, and a scheduler that looks every so
many steps looks later, for steps that draft are longer. The corpus doubts a run that has a slower twin for the same
reason; this reads the runs of the same series that have no twin, too. Only measured times are read, none predicted.

Experts over ranks change both, too, but alike at all loads (1 to 3 % of MiniMax-M2.5). Series that differ in that alone
are twins where what one gains a token falls from over 20 % at its small loads to less at its large ones, as drafts do
that pay while a step has room.

Two series of the corpus are such. DeepSeek-R1 in FP8 under SGLang on eight B200s, 25 runs, all eleven twins of which
agree. Its script of public launches (InferenceX benchmarks/dsr1_fp8_b200_mtp.sh) drafts two tokens and takes eight GPUs
only, up to 512 requests. At the loads where no twin ran, its first tokens come later than those of four GPUs do. And
Qwen3.5 in FP8 under SGLang on four B200s, 18 runs without expert parallelism: tokens 1.4 times as soon as with it at 8
to 32 requests and no sooner at 128, first tokens 1.05 to 1.7 times as late, and up to 256 requests at once where the
script of plain runs allows 128 (InferenceX launches it as qwen3.5-fp8-b200-sglang-mtp, too).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from statistics import median

NAME = re.compile(r" id=(?P<before>.*)_\d+x\d+_c\d+(?P<after>.*)$")
COUNTED = re.compile(r"_\d+$")  # the number of a row in a table of its own
PLACE = "engine", "version", "gpu", "model", "precision", "tp", "pp", "ep", "dp", "isl", "osl", "spread", "concurrency"
ARTEFACT = "artefact"  # in what the corpus doubts: a row whose split is not what ran
FEWEST = 5  # loads at which both ran
GAIN = 1.2  # of tokens at small loads, by drafts
ALIKE = tuple(name for name in PLACE if name != "ep")
Line = Mapping[str, str]
Met = tuple[float, float, float]  # requests in flight; how much sooner tokens, and how much later first tokens come


def series(line: Line) -> str:
    """The series of a row: its source's name of it, less its lengths, load and number; empty where it has none."""
    found = NAME.search(line["url"])
    return found["before"] + COUNTED.sub("", found["after"]) if found else ""


def drafting(lines: Iterable[Line]) -> frozenset[str]:
    """The series that drafted: at all loads, of several, where another one ran, sooner tokens and later first ones; or
    as drafts do beside one whose experts are split otherwise.
    """
    known = [line for line in lines if series(line) and ARTEFACT not in line["doubt"]]
    known = [line for line in known if line["ttft_ms"] and line["tpot_ms"]]
    same = {one for one, met in _twins(known, PLACE) if all(gain > 1 and later > 1 for _, gain, later in met)}
    return frozenset(same | {one for one, met in _twins(known, ALIKE) if _fades(met)})


def _fades(met: Sequence[Met]) -> bool:
    """Whether tokens come sooner at small loads, by more than at large ones, and first tokens later at all."""
    loads = sorted(met)
    small, large = loads[: len(loads) // 2], loads[len(loads) // 2 :]
    gain, least = (median(each for _, each, _ in part) for part in (small, large))
    return gain >= GAIN and gain - least >= (GAIN - 1) / 2 and all(later > 1 for _, _, later in met)


def _twins(lines: Iterable[Line], alike: Sequence[str]) -> Iterator[tuple[str, list[Met]]]:
    """Every series beside another one that ran at some of its loads, at enough of them."""
    places: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        places.setdefault(tuple(line[name] for name in alike), []).append(line)
    met: dict[tuple[str, str], list[Met]] = {}
    for runs in places.values():
        for one, other in permutations(runs, 2):
            if series(one) != series(other) and one["tpot_ms"] != other["tpot_ms"]:  # equal: one run in two tables
                gain = float(other["tpot_ms"]) / float(one["tpot_ms"])
                later = float(one["ttft_ms"]) / float(other["ttft_ms"])
                met.setdefault((series(one), series(other)), []).append((float(one["concurrency"]), gain, later))
    return ((one, found) for (one, _), found in met.items() if len(found) >= FEWEST)

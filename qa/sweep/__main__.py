"""Answers that no engineer would believe: `python -m qa.sweep [--gpu NAME ...] [--kernel NAME ...] [--show 20]`.

Calls of well-known models are asked of GPUs, types, stacks, versions and protocols, and each answer is held against
that of the version before, of the wider type, of the other protocols, and of the nearest measured GPU scaled by the
rates of both. The table counts pairs that differ by more than they may where no rows decide, and those of them whose
intervals are apart: there the interval does not say it either.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict

from pipewave.prediction.answers import Prediction
from qa.sweep import asked, held

GPUS = (*dict.fromkeys((*held.NEAREST.values(), *held.NEAREST)),)
FEW = (None, "vllm-0.19.0", "vllm-0.22.1", "vllm-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20")


def answers(gpus: list[str], kernels: list[str]) -> dict[asked.Asked, Prediction]:
    """Every version of the graph protocol, which most rows are of, and few of the others."""
    others = tuple(name for name in asked.PROTOCOLS if name != "graph")
    parts = ((("graph",), asked.stacks()), (others, FEW))
    found = (asked.answer(kernel, gpu, *part) for gpu in gpus for kernel in kernels for part in parts)
    return {call: answer for part in found for call, answer in part}


def main() -> None:
    """Print counts by relation, and the worst of each group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="append", help="default: all, which takes a quarter of an hour")
    parser.add_argument("--kernel", action="append", choices=sorted(asked.KERNELS))
    parser.add_argument("--show", type=int, default=20, help="groups that are shown")
    options = parser.parse_args()
    given = answers(options.gpu or list(GPUS), options.kernel or list(asked.KERNELS))
    compared, found = Counter(held.pairs(given)), list(held.outliers(given))
    print(f"{len(given)} answers")
    for relation, most in held.MOST.items():
        some = [one for one in found if one.relation == relation]
        apart = sum(one.apart for one in some)
        print(f"{relation:18} {compared[relation]:7} pairs, {len(some):6} beyond {most}, {apart:6} of them apart")
    groups: dict[tuple[str, ...], list[held.Found]] = defaultdict(list)
    for one in found:
        groups[one.relation, one.asked.kernel, one.asked.gpu, one.asked.dtype, str(one.asked.stack)].append(one)
    for group, some in sorted(groups.items(), key=lambda each: -sum(o.ratio * o.apart for o in each[1]))[
        : options.show
    ]:
        worst = max(some, key=lambda one: (one.apart, one.ratio))
        print(f"{worst.ratio:6.2f} {len(some):4} {' '.join(group)}\n       {worst.text}")


if __name__ == "__main__":
    main()

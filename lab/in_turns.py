"""Engines in processes of their own on one GPU, asked in turn: while one answers, the others idle."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Served:
    """An engine in a process that answers each line of its input with a line of JSON."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, *, own_group: bool = False
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=log.open("wb"), text=True,
                                         start_new_session=own_group)  # fmt: skip

    def line(self) -> Any:
        """The next answer. RuntimeError where the engine has ended."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"the engine {self.name!r} has ended; see its log")
        return json.loads(text)

    def ask(self, what: Any) -> Any:
        """The answer to a question, as JSON."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self.line()

    def close(self) -> None:
        """End the engine."""
        self._process.kill()
        self._process.wait()


def compared(engines: Sequence[Served], what: Any, rounds: int) -> dict[str, Any]:
    """Ask all engines the same in turn, in another order each round; the first round does not count.

    Each answers with `ms`, and other figures by name. Medians by engine, and how many times as fast as the first
    engine each other one is, with the quartiles over rounds.
    """
    taken: dict[str, list[dict[str, float]]] = {engine.name: [] for engine in engines}
    for turn in range(1 + rounds):
        for engine in engines if turn % 2 else reversed(engines):
            taken[engine.name].append(engine.ask(what))
    kept = {name: many[1:] for name, many in taken.items()}
    found: dict[str, Any] = {key: {name: statistics.median(one[key] for one in many) for name, many in kept.items()}
                             for key in kept[engines[0].name][0]}  # fmt: skip
    samples = {name: [one["ms"] for one in many] for name, many in kept.items()}
    first, *others = (engine.name for engine in engines)
    ratios = {name: np.divide(samples[first], samples[name]) for name in others}
    speed_up = {name: found["ms"][first] / found["ms"][name] for name in others}
    quartiles = {name: np.quantile(each, (0.25, 0.75)).tolist() for name, each in ratios.items()}
    return found | {"samples_ms": samples, "speed_up": speed_up, "speed_up_rounds": quartiles}

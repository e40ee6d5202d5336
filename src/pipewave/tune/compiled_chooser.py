"""Short lists evaluated by one C function of a launch: counts of the candidates, their laws, the least of them.

The same sums as `wave.terms` · law over `Formula.one`: both are written from those very functions, by what they compute
of traced numbers. Configurations whose counts are worked out by the same steps share a function, with tiles and laws as
data, so that the text depends on the kernel alone and is compiled once, by the compiler that Triton itself calls for
its launchers (`source/numbers.h`, `choose.c`). Where nothing can be compiled, `chooser` does the same sums with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import numpy as np

from pipewave.files import packaged
from pipewave.tune.law import wave
from pipewave.tune.law.anchors import Floats, Ints
from pipewave.tune.law.wave import LaunchCounts
from pipewave.tune.source.emitted import Known, Native, identifier, plain, with_guards
from pipewave.tune.source.formula import Formula
from pipewave.tune.source.traced import Trace

CELL_BITS = 7  # of a size in a cell
NEAREST = 3  # launches of a short list that its factors are taken from, by how near they are in size
AWAY = 0.05  # of log sizes, added to a distance: a launch that is met exactly does not decide alone
# Doubles: how many configurations n and launches s; numbers of the configurations [n]; factors on their µs at the
# launches [s, n]; log sizes of the launches [s, d], if there are several.
Short = bytes
Key = tuple[Any, ...]
CHOOSE = Path(__file__).with_name("choose.c")
NUMBERS = Path(__file__).parent / "source" / "numbers.h"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Number of a configuration, its counts (one formula for each way that launches turn), its law [terms] and how many
    of its blocks an SM holds.
    """

    index: int
    counted: Sequence[Formula]
    law: Floats
    resident: int

    def text(self, known: Known) -> tuple[list[str], list[float]]:
        """Lines of a C function over variables named as `identifier` names inputs, and the known numbers in them: `w`
        gets the `LaunchCounts`; it leaves with 0 where a launch takes other turns, with 1 else.
        """
        lines, values = list[str](), list[float]()
        for each in self.counted:
            trace, outputs = each.traced
            wanted = [*outputs[:5], outputs[wave.COUNTS] if len(outputs) > wave.COUNTS else 0.0]
            start = len(values)
            text = Native(trace, with_guards(trace, wanted), lambda at, number, start=start: known(start + at, number))  # type: ignore[misc]
            checks = [f"{'!' if turned else ''}({guard})" for guard, turned in text.checks()]
            results = [f"w[{at}] = {text.number(value)};" for at, value in enumerate(wanted)]
            lines += ["{ int bad = 0;", *(f"const double {line};" for line in text.lines), *results,
                      f"if (!({' || '.join(['bad', *checks])})) return 1; }}"]  # fmt: skip
            values += text.values
        return [*lines, "return 0;"], values


def compiled_chooser(
    candidates: Sequence[Candidate], inputs: Sequence[str], celled: Sequence[int],
    cells: Mapping[int, Mapping[int, Short]], sms: int,
) -> Callable[[Key], int | None] | None:  # fmt: skip
    """A C function of a key: the fastest on the short list of its cell, the first of those that have one; None where
    none has, or for a launch that takes turns which were not read. No function where nothing can be compiled.

    `celled`: places among the inputs of the sizes that cells are told by, in order; `cells`: short lists by how many
    octaves of sizes a cell takes.
    """
    functions, parts = _functions(candidates, inputs)
    width = 3 + len(wave.TERMS) + max(len(tile) for _, tile in parts.values())
    sizes = {"INPUTS": len(inputs), "LEVELS": len(cells), "LAW": len(wave.TERMS), "RECORD": width,
             "SIZES": len(celled), "NEAREST": NEAREST, "AWAY": AWAY}  # fmt: skip
    names = ", ".join(f"counts_{at}" for at in range(len(functions)))
    made = module("\n".join([
        packaged.text(NUMBERS), *(f"#define {name} {value}" for name, value in sizes.items()), _law_text(sms),
        *functions, f"static int (*const counts[])(const double *, const double *, double *) = {{{names}}};",
        f"static const int octaves[] = {{{', '.join(map(str, cells))}}};", _cell_text(celled),
        packaged.text(CHOOSE),
    ]))  # fmt: skip
    if made is None:
        return None
    records, tiles = np.zeros((max(one.index for one in candidates) + 1, width)), dict[Any, int]()
    for one in candidates:
        at, tile = parts[one.index]
        row = [at, tiles.setdefault((at, tile), len(tiles)), one.resident, *one.law, *tile]
        records[one.index, : len(row)] = row
    return partial(made.choose, tuple(cells.values()), records.tobytes())


def short(listed: Ints, factors: Floats, logs: Floats | None = None) -> Short:
    """A short list of configurations [n] with factors on their µs at some launches [s, n], of log sizes [s, d]."""
    head = [len(listed), len(factors), *listed]
    return np.concatenate([head, factors.ravel(), [] if logs is None or len(logs) < 2 else logs.ravel()]).tobytes()


def factors_at(listed: Short, logs: Floats) -> tuple[Ints, Floats]:
    """Configurations [n] of a short list, and the factors [n] at a launch of log sizes [d]."""
    values = np.frombuffer(listed)
    n, s = int(values[0]), int(values[1])
    configs, factors = values[2 : 2 + n].astype(np.int64), values[2 + n : 2 + n + s * n].reshape(s, n)
    if s == 1:
        return configs, factors[0]
    away = AWAY + np.abs(values[2 + n + s * n :].reshape(s, -1) - logs).sum(axis=1)
    near = np.argsort(away, kind="stable")[:NEAREST]
    share = 1.0 / away[near]
    return configs, np.asarray(share / share.sum() @ factors[near])


def _functions(candidates: Sequence[Candidate], inputs: Sequence[str]) -> tuple[list[str], dict[int, Any]]:
    """Text of the functions that count, one for all configurations that count alike; the number of the function of
    each configuration, and the known numbers that it gets: one for places that always hold the same.
    """
    alike: dict[tuple[str, ...], list[tuple[Candidate, list[float]]]] = {}
    for one in candidates:
        lines, values = one.text(lambda place, _: f"c[{place}]")
        alike.setdefault(tuple(lines), []).append((one, values))
    unpacked = [f"const double {identifier(name)} = v[{at}];" for at, name in enumerate(inputs)]
    texts, parts = [], dict[int, tuple[int, tuple[float, ...]]]()
    for at, some in enumerate(alike.values()):
        columns = list(zip(*(values for _, values in some), strict=True))
        varied = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
        names = [f"c[{varied.index(column)}]" if column in varied else "" for column in columns]
        lines, _ = some[0][0].text(lambda place, number, names=names: names[place] or plain(number))  # type: ignore[misc]
        texts.append(_c_function(f"int counts_{at}(const double *v, const double *c, double *w)", [*unpacked, *lines]))
        pick = [columns.index(column) for column in varied]
        parts |= {one.index: (at, tuple(values[place] for place in pick)) for one, values in some}
    return texts, parts


def _law_text(sms: int) -> str:
    """`wave.terms` times a law, of counts `w`; no block takes fewer trips than the mean, and there is one at least."""
    trace, names = Trace(), LaunchCounts._fields
    *counts, resident = (trace.symbol(name, 1.0) for name in (*names, "resident"))
    terms = wave.terms(LaunchCounts(*counts), sms, resident)
    text = Native(trace, terms)
    sums = [f"law[{at}] * {text.number(term)}" for at, term in enumerate(terms)]
    values = "greatest(w[0], 1)", "w[1]", "greatest(w[2], w[1])", "w[3]", "w[4]", "w[5]"
    given = [f"const double {identifier(name)} = {value};" for name, value in zip(names, values, strict=True)]
    body = ["int bad = 0;", *given, *(f"const double {line};" for line in text.lines), f"return {' + '.join(sums)};"]
    return _c_function(f"double law_us(const double *w, double {identifier('resident')}, const double *law)", body)


def _cell_text(celled: Sequence[int]) -> str:
    """Packs the bits of sizes less one, as `chooser` does for many at once; and their logarithms."""
    cell = [f"cell = cell << {CELL_BITS} | bits(v[{at}] - 1) / octaves;" for at in celled]
    logs = [f"x[{i}] = log(greatest(v[{at}], 1));" for i, at in enumerate(celled)]
    return "\n".join([_c_function("long long cell_of(const double *v, int octaves)",
                                  ["long long cell = 0;", *cell, "return cell;"]),
                      _c_function("void placed(const double *v, double *x)", logs)])  # fmt: skip


def _c_function(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"static {head} {{", *(f"  {line}" for line in lines), "}"])


@cache
def module(source: str) -> Any:
    """The Python module of a C source, None where nothing can be compiled. Triton keeps the binary in its cache."""
    try:
        try:
            from triton.runtime.build import compile_module_from_src as made
        except ImportError:  # Triton 3.3
            from triton.backends.nvidia.driver import compile_module_from_src as made
        return made(source, "pipewave_decide")
    except (ImportError, OSError, RuntimeError, SubprocessError):  # no Triton, no compiler, or one that fails
        return None

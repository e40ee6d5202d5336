"""Short lists evaluated by one C function of a launch: counts of the candidates, their laws, the least of them.

The same sums as `wave.terms` · law over `Formula.one`: both are written from those very functions, by what they compute
of traced numbers. Configurations whose counts are worked out by the same steps share a function, with tiles and laws as
data, so that the text depends on the kernel alone and is compiled once. In Python a candidate took a fifth of a
microsecond, and two to three times as long where other work had come in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from pipewave.tune.law import wave
from pipewave.tune.law.anchors import Floats, Ints
from pipewave.tune.law.launch_counts import LaunchCounts
from pipewave.tune.source.emitted import SCALARS, Emitted, function, identifier
from pipewave.tune.source.formula import Formula
from pipewave.tune.source.native import HEAD, Native, counted, module, plain, unpacked
from pipewave.tune.source.traced import Trace

COUNTED = ("blocks", "trips", "longest", "least", "moved", "idle")  # of a launch, in the order of `formula.OUTPUTS`
IDLE = 6  # place of idle blocks among the outputs of a formula, where it has them
RECORD = 3 + len(wave.TERMS)  # numbers of a configuration before its tile
CELL_BITS = 7  # of a size in a cell
Short = bytes  # pairs of doubles: number of a configuration, factor on its µs
Key = tuple[Any, ...]
# A record of a configuration: number of its function, of its tile, blocks that an SM holds, then law and tile.
CHOOSE = """static PyObject *choose(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 3 || !PyTuple_Check(args[2]) || PyTuple_GET_SIZE(args[2]) != INPUTS) Py_RETURN_NONE;
  double v[INPUTS + 1], w[6], best = INFINITY, tile = -1;
  for (int i = 0; i < INPUTS; i++) {
    v[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(args[2], i));
    if (v[i] == -1 && PyErr_Occurred()) { PyErr_Clear(); Py_RETURN_NONE; } }
  PyObject *listed = NULL;
  for (int i = 0; i < LEVELS && !listed; i++) {
    PyObject *cell = PyLong_FromLongLong(cell_of(v, octaves[i]));
    listed = PyDict_GetItem(PyTuple_GET_ITEM(args[0], i), cell);
    Py_DECREF(cell); }
  if (!listed) Py_RETURN_NONE;
  const double *records = (const double *)PyBytes_AS_STRING(args[1]);
  const double *at = (const double *)PyBytes_AS_STRING(listed);
  const double *end = at + PyBytes_GET_SIZE(listed) / 8;
  long index = (long)at[0];
  if (end - at > 2) for (; at < end; at += 2) {
    const double *of = records + (long)at[0] * RECORD;
    if (of[1] != tile) {
      if (!counts[(int)of[0]](v, of + 3 + LAW, w)) Py_RETURN_NONE;
      tile = of[1]; }
    double us = at[1] * law_us(w, of[2], of + 3);
    if (us < best) { best = us; index = (long)at[0]; } }
  return PyLong_FromLong(index); }
static PyMethodDef methods[] = {{"choose", (PyCFunction)(void *)choose, METH_FASTCALL, ""}, {0}};
static struct PyModuleDef decide = {PyModuleDef_HEAD_INIT, "pipewave_decide", 0, -1, methods};
PyMODINIT_FUNC PyInit_pipewave_decide(void) { return PyModule_Create(&decide); }
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Number of a configuration, its counts, its law [terms] and how many of its blocks an SM holds."""

    index: int
    counted: Formula
    law: Floats
    resident: int


class CompiledChooser:
    """The C function of a kernel's configurations. `halved`, `whole`: places among the inputs of the sizes that cells
    are told by, in order; cells take sizes in so many `octaves` (0: in one, those `halved` in half of one).
    """

    def __init__(self, candidates: Sequence[Candidate], inputs: Sequence[str], halved: Sequence[int],
                 whole: Sequence[int], octaves: Sequence[int], sms: int) -> None:  # fmt: skip
        functions, self._parts = _functions(candidates, inputs)
        tiles = max(len(tile) for _, tile in self._parts.values())
        sizes = {
            "INPUTS": len(inputs),
            "LEVELS": len(octaves),
            "LAW": len(wave.TERMS),
            "RECORD": 3 + len(wave.TERMS) + tiles,
        }
        names = ", ".join(f"counts_{at}" for at in range(len(functions)))
        self._source = "\n".join([
            HEAD, *(f"#define {name} {value}" for name, value in sizes.items()), _law_text(sms),
            *functions, f"static int (*const counts[])(const double *, const double *, double *) = {{{names}}};",
            f"static const int octaves[] = {{{', '.join(map(str, octaves))}}};", _cell_text(halved, whole), CHOOSE,
        ])  # fmt: skip
        self._records = self._recorded(candidates, sizes["RECORD"])

    def _recorded(self, candidates: Sequence[Candidate], width: int) -> bytes:
        records = np.zeros((max(one.index for one in candidates) + 1, width))
        tiles: dict[Any, int] = {}
        for one in candidates:
            function, tile = self._parts[one.index]
            number = tiles.setdefault((function, tile), len(tiles))
            row = [function, number, one.resident, *one.law, *tile]
            records[one.index, : len(row)] = row
        return records.tobytes()

    def chooser(self, cells: tuple[Mapping[int, Short], ...]) -> Any:
        """A function of a key: the fastest on the short list of its cell, the first of those that have one; None where
        none has, or for a launch that takes turns which were not read. No function where nothing can be compiled.
        """
        made = module(self._source)
        return None if made is None else partial(made.choose, cells, self._records)


def short(listed: Ints, by: Floats) -> Short:
    """A short list of configurations [n], each with a factor [n] on its µs."""
    return np.stack([listed, by], axis=1).astype(np.float64).tobytes()


def _functions(candidates: Sequence[Candidate], inputs: Sequence[str]) -> tuple[list[str], dict[int, Any]]:
    """Text of the functions that count, one for all configurations that count alike; the number of the function of
    each configuration, and the known numbers that it gets.
    """
    alike: dict[tuple[str, ...], list[tuple[Candidate, list[float]]]] = {}
    for one in candidates:
        lines, values = _counted(one, lambda place, _: f"c[{place}]")
        alike.setdefault(tuple(lines), []).append((one, values))
    texts, parts = [], dict[int, tuple[int, tuple[float, ...]]]()
    for at, some in enumerate(alike.values()):
        names, pick = _parameters([values for _, values in some])
        lines, _ = _counted(some[0][0], lambda place, number, names=names: names[place] or plain(number))
        texts.append(_function(f"int counts_{at}(const double *v, const double *c, double *w)",
                               [*unpacked(inputs, "v"), *lines]))  # fmt: skip
        parts |= {one.index: (at, tuple(values[place] for place in pick)) for one, values in some}
    return texts, parts


def _counted(one: Candidate, known: Any) -> tuple[list[str], list[float]]:
    trace, outputs = one.counted.traced
    idle = outputs[IDLE] if len(outputs) > IDLE else 0.0
    return counted(trace, [*outputs[: IDLE - 1], idle], known)


def _parameters(values: Sequence[Sequence[float]]) -> tuple[list[str], list[int]]:
    """Names of known numbers by their place, empty where all configurations [n] share them; one name for places that
    always hold the same; and the place that each name is taken from.
    """
    columns = list(zip(*values, strict=True))
    varied = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    names = [f"c[{varied.index(column)}]" if column in varied else "" for column in columns]
    return names, [columns.index(column) for column in varied]


@cache
def law_function(sms: int) -> Callable[..., Any]:
    """`wave.terms` times a law as a Python function of counts, resident blocks and the law: (µs,)."""
    trace = Trace()
    *counts, resident = (trace.symbol(name, 1.0) for name in (*COUNTED, "resident"))
    law = [trace.symbol(f"law{i}", 1.0) for i in range(len(wave.TERMS))]
    terms = wave.terms(LaunchCounts(*counts), sms, resident)
    total = sum(by * term for by, term in zip(law, terms, strict=True))
    text = Emitted(trace, [total])
    answer = text.number(total)
    names = [identifier(name) for name in (*COUNTED, "resident", *(f"law{i}" for i in range(len(law))))]
    return function(names, [*text.lines, f"return ({answer},)"], {"abs": abs, **SCALARS})


def _law_text(sms: int) -> str:
    """`wave.terms` times a law, of counts `w` of a launch: the busiest SM has a block at least, and no block takes
    fewer trips than the mean.
    """
    trace = Trace()
    *counts, resident = (trace.symbol(name, 1.0) for name in (*COUNTED, "resident"))
    terms = wave.terms(LaunchCounts(*counts), sms, resident)
    text = Native(trace, terms)
    sums = [f"law[{at}] * {text.number(term)}" for at, term in enumerate(terms)]
    body = [*(f"const double {line};" for line in text.lines), f"return {' + '.join(sums)};"]
    given = [f"const double {identifier(name)} = {value};" for name, value in zip(COUNTED, (
        "greatest(w[0], 1)", "w[1]", "greatest(w[2], w[1])", "w[3]", "w[4]", "w[5]"), strict=True)]  # fmt: skip
    head = f"double law_us(const double *w, double {identifier('resident')}, const double *law)"
    return _function(head, ["int bad = 0;", *given, *body])


def _cell_text(halved: Sequence[int], whole: Sequence[int]) -> str:
    """Packs the bits of sizes less one, as `chooser` does for many at once."""
    sizes = [*(f"bits((v[{at}] - 1) * (octaves ? 1 : v[{at}] - 1))" for at in halved),
             *(f"bits(v[{at}] - 1)" for at in whole)]  # fmt: skip
    lines = [f"cell = cell << {CELL_BITS} | {one} / (octaves ? octaves : 1);" for one in sizes]
    return _function("long long cell_of(const double *v, int octaves)", ["long long cell = 0;", *lines, "return cell;"])


def _function(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"static {head} {{", *(f"  {line}" for line in lines), "}"])

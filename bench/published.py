"""Published runs of other people's servers against `serve --cases`: `python -m bench.published`.

Every row without `doubt` is one case. Errors are means over groups (source, engine, GPU, model, precision) of the
group's mean absolute error, so that a source with many rows counts no more than one with few. Argonne's runs (vLLM V0,
TensorRT-LLM 0.x), rows that need what a case cannot say, and rows whose rates no such number of GPUs can reach are
counted apart, as are rows that do not say how many workers their requests were spread over.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.published_fit import RESULTS as FITTED
from bench.published_fit import Constants, with_constants
from bench.published_rows import METRICS, OLD, PARTS, Group, Row, corpus, read
from bench.published_slices import resumed
from pipewave.errors import PipewaveError
from pipewave.serving.answers import answer
from pipewave.serving.cases import from_dict
from pipewave.serving.stream import answer_lines, error

NEAR = 0.25
RESULTS = Path(__file__).parent / "results" / "published.json"
COLUMNS = ("id", "kind", *(f"{name}_{side}" for name in METRICS for side in ("measured", "predicted")))
Answer = dict[str, Any]


def answers(rows: Sequence[Row], workers: int) -> list[Answer]:
    """What `pipewave serve --cases` answers to the rows, in order."""
    lines = [json.dumps(row.case) for row in rows]
    if workers < 2:
        return list(answer_lines(lines))
    with ProcessPoolExecutor(workers) as pool:
        return list(answer_lines(lines, pool))


def left_out(rows: Sequence[Row], shipped: Sequence[Answer], workers: int, part: str = "group") -> list[Answer]:
    """The same with the constants of each row's group (or model, GPU, version) fitted on the others'
    (`bench.published_fit`)."""
    own = _constants(part)
    again = [i for i, row in enumerate(rows) if _key(row, part) in own and row.case["mode"] == "serve"]
    found = list(shipped)
    with ProcessPoolExecutor(max(workers, 1)) as pool:
        tasks = [(rows[i].case, rows[i].group.engine, own[_key(rows[i], part)]) for i in again]
        for i, answer in zip(again, pool.map(_with_constants, tasks, chunksize=16), strict=True):
            found[i] = answer
    return found


def sliced(
    rows: Sequence[Row], folder: Path, until_s: float, parts: Sequence[str]
) -> tuple[list[Answer], dict[str, list[Answer]]]:
    """Both, as far as there is time; ends the command where there is not. The folder keeps what is answered."""
    by_id = {row.id: row for row in sorted(rows, key=_deployment)}
    folder.mkdir(parents=True, exist_ok=True)
    shipped = resumed(folder / "shipped.jsonl", by_id, lambda name: answers([by_id[name]], 1)[0], until_s)
    left = sum(name not in shipped for name in by_id)
    apart: dict[str, list[Answer]] = {}
    for part in parts:
        own = _constants(part)
        again = [name for name, row in by_id.items() if _key(row, part) in own and row.case["mode"] == "serve"]

        def other(name: str, own: dict[tuple[str, str], Constants] = own, part: str = part) -> Answer:
            row = by_id[name]
            return _with_constants((row.case, row.group.engine, own[_key(row, part)]))

        others = resumed(folder / f"left_out_{part}.jsonl", again, other, until_s)
        left += sum(name not in others for name in again)
        apart[part] = [others.get(row.id, shipped.get(row.id, {})) for row in rows]
    if left:
        sys.exit(f"{left} answers are left: give the same command again")
    return [shipped[row.id] for row in rows], apart


def _deployment(row: Row) -> str:
    """Rows of one deployment follow each other: its tables are kept."""
    case = row.case
    return json.dumps([case[name] for name in ("engine", "model", "gpu")] + [case.get("version", ""), case["isl"]])


def _key(row: Row, part: str) -> tuple[str, str]:
    return row.group.engine, PARTS[part](row)


def _constants(part: str) -> dict[tuple[str, str], Constants]:
    """Constants of groups (or models, GPUs, versions) whose own rows changed them; all others are as shipped."""
    table = json.loads(FITTED.read_text("utf-8"))
    return {
        (engine, label): tuple(constants)
        for engine, one in table.items()
        for label, constants in _fitted(one, part).items()
        if constants != one["constants"]
    }


def _fitted(one: dict[str, Any], part: str) -> dict[str, list[float]]:
    """What was fitted without each group, model, GPU or version of an engine."""
    if part != "group":
        return dict(one["parts"][part])
    return {str(Group(*(group[name] for name in Group.__slots__))): group["constants"] for group in one["groups"]}


def _with_constants(task: tuple[dict[str, Any], str, Constants]) -> Answer:
    case, engine, constants = task
    try:
        return {"id": case["id"], **answer(from_dict(case), with_constants(engine, constants))}
    except PipewaveError as problem:
        return {"id": case["id"], **error(problem)}


def errors(row: Row, answer: Answer) -> dict[str, float]:
    """predicted / measured − 1 of every mean that both hold."""
    return {name: answer[name] / value - 1.0 for name, value in row.measured.items() if name in answer}


def inside(row: Row, answer: Answer) -> dict[str, bool]:
    """Whether each measured mean lies in the interval of its prediction."""
    return {
        name: answer[f"{name}_low"] <= value <= answer[f"{name}_high"]
        for name, value in row.measured.items()
        if f"{name}_low" in answer
    }


def kind(row: Row) -> str:
    """What a row is counted with: its engine, or apart."""
    old = " (Argonne)" if row.group.source == OLD else ""
    return row.group.engine + old + _need(row) + (" (other modes)" if row.case["mode"] != "serve" and not old else "")


def _need(row: Row) -> str:
    """What a row needs beyond one plain engine: data-parallel attention, pools apart, drafts, or something else."""
    if row.case.get("dp", 1) > 1:
        return " (attention DP)"
    if row.apart and row.answerable:
        return f" ({row.apart})"
    if row.answerable and row.needs:
        return " (families read since)"
    named = next((word for word in ("disaggregated", "speculative") if word in row.needs), "needs")
    generated = f", {row.apart}" if row.generated else ""
    return f" ({named}{generated})" if row.needs else ""


def by_group(rows: Sequence[Row], found: Sequence[Answer]) -> list[dict[str, Any]]:
    """One row a group: how many rows, how many in error and why, and the errors of each mean in percent."""
    keys: dict[tuple[str, Group], list[int]] = {}
    for i, row in enumerate(rows):
        keys.setdefault((kind(row), row.group), []).append(i)
    return [
        {"kind": name, **asdict(group), **_group([rows[i] for i in members], [found[i] for i in members])}
        for (name, group), members in sorted(keys.items(), key=lambda item: (item[0][0], *asdict(item[0][1]).values()))
    ]


def _group(rows: Sequence[Row], found: Sequence[Answer]) -> dict[str, Any]:
    whys = sorted({answer["error"]["message"] for answer in found if "error" in answer})
    out: dict[str, Any] = {"rows": len(rows), "in error": sum("error" in answer for answer in found), "why": whys}
    good = [(row, answer) for row, answer in zip(rows, found, strict=True) if "error" not in answer]
    for name in METRICS:
        error = np.array([e[name] for row, answer in good if name in (e := errors(row, answer))])
        held = [h[name] for row, answer in good if name in (h := inside(row, answer))]
        if len(error):
            out[name] = {
                "n": len(error),
                "mape": round(100 * float(np.abs(error).mean()), 2),
                "median": round(100 * float(np.median(error)), 2),
                "within": round(100 * float((np.abs(error) <= NEAR).mean()), 1),
                "covered": round(100 * float(np.mean(held)), 1),
            }
    return out


def by_kind(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the groups of each kind."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        kinds.setdefault(group["kind"], []).append(group)
    return [{"kind": name, **means(members)} for name, members in kinds.items()]


def means(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over groups, each alike; shares over rows."""
    out: dict[str, Any] = {name: sum(group[name] for group in groups) for name in ("rows", "in error")}
    for name in METRICS:
        scored = [group[name] for group in groups if name in group]
        if scored:
            weight = np.array([score["n"] for score in scored], float)
            out[name] = {"groups": len(scored), "mape": round(float(np.mean([s["mape"] for s in scored])), 2)} | {
                part: round(float(np.average([s[part] for s in scored], weights=weight)), 1)
                for part in ("within", "covered")
            }
    return out


def _point(row: Row, one: Answer) -> str:
    """A row of the scatter plot: measured and predicted, no text of the source."""
    cells = [f"{row.measured[n]:.2f},{one[n]:.2f}" if n in row.measured and n in one else "," for n in METRICS]
    return f"{row.id},{kind(row)},{','.join(cells)}"


def _named(row: Row, only: str) -> bool:
    """Whether a row's group has all words of one of the alternatives."""
    name = f"{kind(row)} {' '.join(asdict(row.group).values())}"
    return any(all(word in name for word in words.split()) for words in only.split("|"))


def main() -> None:
    """Answer, score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="only groups with these words: 'vllm B200|sglang B200'")
    parser.add_argument("--needs", action="store_true", help="also rows that need what a case cannot say")
    parser.add_argument("--dated", action="store_true", help="rows without a version run on the release of their day")
    parser.add_argument("--every", type=int, default=1, help="only one row in so many")
    parser.add_argument("--answers", type=Path, help="also write the answers here, one JSON line a row")
    parser.add_argument("--slices", type=Path, help="keep answers in this folder; the same command again goes on")
    parser.add_argument("--seconds", type=float, default=240, help="of a slice")
    parser.add_argument("--parts", action="store_true", help="also leave whole models, GPUs and versions out of fits")
    parser.add_argument("--json", type=Path, help=f"write the scores here, such as {RESULTS.name}")
    options = parser.parse_args()
    every = [row for row in read(options.data or corpus(), dated=options.dated) if _named(row, options.only)]
    rows = [row for row in every if options.needs or row.answerable][:: options.every]
    began, parts = time.perf_counter(), list(PARTS) if options.parts else ["group"]
    if options.slices:
        found, apart = sliced(rows, options.slices, time.monotonic() + options.seconds, parts)
    else:
        found = answers(rows, options.workers)
        apart = {part: left_out(rows, found, options.workers, part) for part in parts}
    sys.stderr.write(f"{len(rows)} rows in {time.perf_counter() - began:.0f} s\n")
    tables = {part: by_group(rows, one) for part, one in apart.items()} | {"shipped": by_group(rows, found)}
    if options.answers:
        options.answers.write_text("".join(json.dumps(answer) + "\n" for answer in found), "utf-8")
    if options.json:
        write(
            options.json,
            tables,
            [_point(row, one) for row, one in zip(rows, apart["group"], strict=True) if "error" not in one],
        )
    for name, table in tables.items():
        print(f"{name} left out" if name in PARTS else "as shipped")
        show(table if name in ("group", "shipped") else [], by_kind(table))


def write(path: Path, tables: dict[str, list[dict[str, Any]]], points: Sequence[str]) -> None:
    """The scores of groups left out and as shipped, of kinds for other parts left out; and the points of the plot."""
    names = {"group": "left_out", "shipped": "as_shipped"}
    scores = {names.get(part, part): {"kinds": by_kind(table)} for part, table in tables.items()}
    for part, name in names.items():
        scores[name]["groups"] = tables[part]
    path.write_text(json.dumps(scores, indent=1) + "\n", "utf-8")
    path.with_suffix(".csv").write_text("\n".join([",".join(COLUMNS), *points]) + "\n", "utf-8")


def show(groups: Sequence[dict[str, Any]], kinds: Sequence[dict[str, Any]]) -> None:
    """Groups, their kinds, and all of them together, each group alike; as text."""
    for group in [*groups, *kinds, *([{"kind": "all", **means(groups)}] if groups else [])]:
        name = " ".join(str(group[part]) for part in ("kind", *Group.__slots__) if part in group)
        cells = [
            f"{metric[:4]} {score['mape']:6.1f} {score.get('median', 0.0):+6.1f} {score['covered']:4.0f}%"
            for metric in METRICS
            if (score := group.get(metric))
        ]
        print(f"{name[:96]:96} {group['rows']:4d} {group['in error'] or '':>4}  {'  '.join(cells)}")


if __name__ == "__main__":
    main()

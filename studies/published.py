"""Published runs of other people's servers against `serve --cases`: `python -m studies.published`.

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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.published import recipes
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.stream import answer_lines
from studies.published_rows import FAMILY, METRICS, OLD, Group, Row, corpus, read
from studies.published_slices import resumed
from train.published_fit import RESULTS as FITTED
from train.published_fit import Constants, with_constants

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


@contextmanager
def recipes_known(which: str) -> Iterator[None]:
    """Within it, only some of what public launches set is known (a process forked inside knows no more): "every"
    recipe, those that name no "model", so that a deployment's launch could not have been read for it, or "none".
    """
    no_model = tuple(recipe for recipe in recipes.every() if "model_type" not in recipe.when)
    some = {"every": recipes.every(), "no model": no_model, "none": ()}[which]
    with mock.patch.object(recipes, "every", return_value=some):
        yield


def left_out(rows: Sequence[Row], shipped: Sequence[Answer], workers: int) -> list[Answer]:
    """The same with the constants of each row's group fitted on the other groups (`train.published_fit`)."""
    own = left_out_constants()
    again = [i for i, row in enumerate(rows) if _key(row) in own and row.case["mode"] == "serve"]
    found = list(shipped)
    with ProcessPoolExecutor(max(workers, 1)) as pool:
        tasks = [(rows[i].case, rows[i].group.engine, own[_key(rows[i])]) for i in again]
        for i, answer in zip(again, pool.map(_with_constants, tasks, chunksize=16), strict=True):
            found[i] = answer
    return found


def sliced(rows: Sequence[Row], folder: Path, until_s: float) -> tuple[list[Answer], list[Answer]]:
    """Both, as far as there is time; ends the command where there is not. The folder keeps what is answered."""
    own, by_id = left_out_constants(), {row.id: row for row in sorted(rows, key=_deployment)}
    again = [name for name, row in by_id.items() if _key(row) in own and row.case["mode"] == "serve"]
    folder.mkdir(parents=True, exist_ok=True)

    def other(name: str) -> Answer:
        row = by_id[name]
        return _with_constants((row.case, row.group.engine, own[_key(row)]))

    shipped = resumed(folder / "shipped.jsonl", by_id, lambda name: answers([by_id[name]], 1)[0], until_s)
    others = resumed(folder / "left_out.jsonl", again, other, until_s)
    if done := len(by_id) + len(again) - sum(n in shipped for n in by_id) - sum(n in others for n in again):
        sys.exit(f"{done} of {len(by_id) + len(again)} answers are left: give the same command again")
    return [shipped[row.id] for row in rows], [others.get(row.id, shipped[row.id]) for row in rows]


def _deployment(row: Row) -> str:
    """Rows of one deployment follow each other: its tables are kept."""
    case = row.case
    return json.dumps([case[name] for name in ("engine", "model", "gpu")] + [case.get("version", ""), case["isl"]])


def _key(row: Row) -> tuple[str, ...]:
    return tuple(asdict(row.group).values())


def left_out_constants() -> dict[tuple[str, ...], Constants]:
    """Constants of groups whose own rows changed them; all others are as shipped."""
    table = json.loads(FITTED.read_text("utf-8"))
    return {
        tuple(group[name] for name in Group.__slots__): tuple(group["constants"])
        for one in table.values()
        for group in one["groups"]
        if group["constants"] != one["constants"]
    }


def _with_constants(task: tuple[dict[str, Any], str, Constants]) -> Answer:
    case, engine, constants = task
    try:
        return {"id": case["id"], **answer(from_dict(case), with_constants(engine, constants))}
    except PipewaveError as problem:
        return {"id": case["id"], "error": problem.to_dict()}


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
    if row.ranks > 1:
        return " (attention DP)"
    if row.apart and row.answerable:
        return f" ({row.apart})"
    if row.answerable:
        return " (families read since)" if row.needs.startswith(FAMILY) else ""
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
    parser.add_argument("--recipes", choices=("every", "no model", "none"), default="every", help="launches known")
    parser.add_argument("--every", type=int, default=1, help="only one row in so many")
    parser.add_argument("--answers", type=Path, help="also write the answers here, one JSON line a row")
    parser.add_argument("--slices", type=Path, help="keep answers in this folder; the same command again goes on")
    parser.add_argument("--seconds", type=float, default=240, help="of a slice")
    parser.add_argument("--json", type=Path, help=f"write the scores here, such as {RESULTS.name}")
    options = parser.parse_args()
    every = [row for row in read(options.data or corpus(), dated=options.dated) if _named(row, options.only)]
    rows = [row for row in every if options.needs or row.answerable][:: options.every]
    began = time.perf_counter()
    with recipes_known(options.recipes):
        if options.slices:
            found, apart = sliced(rows, options.slices, time.monotonic() + options.seconds)
        else:
            found = answers(rows, options.workers)
            apart = left_out(rows, found, options.workers)
    sys.stderr.write(f"{len(rows)} rows in {time.perf_counter() - began:.0f} s\n")
    groups, shipped = by_group(rows, apart), by_group(rows, found)
    if options.answers:
        options.answers.write_text("".join(json.dumps(answer) + "\n" for answer in found), "utf-8")
    if options.json:
        tables = {"left_out": groups, "as_shipped": shipped}
        scores = {name: {"kinds": by_kind(table), "groups": table} for name, table in tables.items()}
        points = [_point(row, one) for row, one in zip(rows, apart, strict=True) if "error" not in one]
        options.json.write_text(json.dumps(scores, indent=1) + "\n", "utf-8")
        options.json.with_suffix(".csv").write_text("\n".join([",".join(COLUMNS), *points]) + "\n", "utf-8")
    show(groups)
    print("as shipped")
    show(shipped)


def show(groups: Sequence[dict[str, Any]]) -> None:
    """Groups, their kinds, and all of them together, each group alike; as text."""
    for group in [*groups, *by_kind(groups), {"kind": "all", **means(groups)}]:
        name = " ".join(str(group[part]) for part in ("kind", *Group.__slots__) if part in group)
        cells = [
            f"{metric[:4]} {score['mape']:6.1f} {score.get('median', 0.0):+6.1f} {score['covered']:4.0f}%"
            for metric in METRICS
            if (score := group.get(metric))
        ]
        print(f"{name[:96]:96} {group['rows']:4d} {group['in error'] or '':>4}  {'  '.join(cells)}")


if __name__ == "__main__":
    main()

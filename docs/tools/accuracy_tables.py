"""Tables of docs/accuracy.md: bars beside measured errors, cells, intervals, ceilings, from committed JSON alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qa.accuracy import KINDS, TABLES, Cell, Cells, Figures, Key, left_out, read_table

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "src" / "pipewave" / "data" / "weights"
KNOWN = " known"  # ends the implementation of second cells: the same rows, their configuration or clock given
Row = dict[str, Any]
Bars = Mapping[str, Any]


def markdown(found: Sequence[Mapping[str, object]]) -> str:
    """A table of all columns that some row has, in order; a line of its own where there is nothing to show."""
    if not found:
        return "*Not measured.*"
    names = list(dict.fromkeys(name for row in found for name in row))
    lines = ["| " + " | ".join(names) + " |", "|---" + "|---:" * (len(names) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(_text(row.get(name)) for name in names) + " |" for row in found)])


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def by_gpu(
    cells: Mapping[str, Cell], gpus: Sequence[str], dtypes: Sequence[str], figure: str = "mape"
) -> dict[str, float]:
    """One figure a GPU, its types weighted by their rows."""
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, cell in cells.items():
        gpu, _, dtype = name.partition(" · ")
        value, rows = cell.get(figure), cell["rows"]
        if gpu in gpus and dtype and (not dtypes or dtype in dtypes) and value is not None and rows is not None:
            values[gpu].append((value, rows))
    return {gpu: _weighted(*zip(*found, strict=True)) for gpu, found in values.items()}


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(np.average(values, weights=weights))


def bars(given: Bars, only: str | None = None) -> list[Row]:
    """Bar and measured figure of each evaluation and family; in bold what misses its bar. `only` keeps one type."""
    return [
        {"evaluation": evaluation["name"]} | dict(_evaluation(given, evaluation, only))
        for evaluation in given["evaluations"]
    ]


def _evaluation(given: Bars, evaluation: Mapping[str, Any], only: str | None) -> Iterator[tuple[str, str]]:
    for (name, family), bar in zip(given["families"].items(), evaluation["bars"], strict=True):
        if only and family["dtypes"]:
            continue
        cells = left_out(family["net"], "graph").get(evaluation["kind"], {})
        found = by_gpu(cells, evaluation["gpus"] or given["gpus"], [only] if only else family["dtypes"])
        yield name, _beside(float(np.mean(list(found.values()))) if found else None, bar)


def _beside(value: float | None, bar: float) -> str:
    if value is None:
        return f"– / {bar:g}"
    return f"{value:.2f} / {bar:g}" if value <= bar else f"**{value:.2f}** / {bar:g}"


def own_bars(given: Bars, own: Cells) -> list[Row]:
    """Our own H200 rows under `cold`, beside their bars; and where the run's clock or configuration was given."""
    rows = []
    for name, family in given["families"].items():
        bar, wanted = given["own_bars"][name], _own(*family["own"])
        found, informed = pooled(own, wanted), pooled(own, wanted, known=True)
        if found:
            row = {"family": name, "rows": found["rows"], "MAPE / bar": _beside(found["mape"], bar)}
            row |= {"clock or configuration known": _beside(informed["mape"], bar) if informed else None}
            row |= {"median %": found["median"], "bias %": found["bias"], "in 90 % interval": found["coverage"]}
            rows.append(row | {"slower than ceiling %": found["slower"], "below floor": found["below_floor"]})
    return rows


def _own(kernel: str, dtype: str) -> Callable[[Key], bool]:
    return lambda key: (key.family, key.protocol) == (kernel, "cold") and dtype in ("", key.dtype)


def pooled(cells: Cells, wanted: Callable[[Key], bool], *, known: bool = False) -> Row | None:
    """Figures of several cells, weighted by rows; the median is the weighted mean of their medians."""
    chosen = [one for key, one in cells.items() if wanted(key) and one.rows and key.impl.endswith(KNOWN) == known]
    if not chosen:
        return None
    weights = [found.rows for found in chosen]
    names = ("mape", "median", "bias", "coverage", "slower", "width")
    means = {name: float(np.average([getattr(found, name) for found in chosen], weights=weights)) for name in names}
    return means | {"rows": sum(weights), "below_floor": sum(found.below_floor for found in chosen)}


def cells_by_family(cells: Cells, protocols: Sequence[str]) -> list[Row]:
    """One row a family, GPU, type and protocol, stacks and implementations together."""
    names = sorted({(k.protocol, k.family, k.gpu, k.dtype) for k in cells if k.protocol in protocols})
    return [_family_row(cells, *name) for name in names]


def _family_row(cells: Cells, protocol: str, family: str, gpu: str, dtype: str) -> Row:
    def mine(key: Key) -> bool:
        return (key.protocol, key.family, key.gpu, key.dtype) == (protocol, family, gpu, dtype)

    found = pooled(cells, mine) or {}
    return {"family": f"{family} {dtype}", "GPU": gpu, "protocol": protocol, "rows": found.get("rows")} | {
        title: found.get(name) for name, title in (("mape", "MAPE %"), ("median", "median %"), ("bias", "bias %"),
                                                   ("coverage", "in 90 %"), ("slower", "slower than ceiling %"))
    }  # fmt: skip


def splits(net: str, protocol: str) -> list[Row]:
    """MAPE of every GPU and type of a net by split, with the coverage of unseen shapes, GPUs and families."""
    found = left_out(net, protocol)
    names = sorted({name for cells in found.values() for name in cells if name != "macro mean"})
    rows = [_split_row(name, found) for name in [*names, "macro mean"] if found]
    return [row for row in rows if any(isinstance(value, float) for value in row.values())]


def _split_row(name: str, found: Mapping[str, Mapping[str, Cell]]) -> Row:
    row: Row = {"GPU and type": name}
    for kind in (kind for kind in KINDS if kind in found):
        row[KINDS[kind]] = found[kind].get(name, {}).get("mape")
    return row


COVERED = ("unseen shapes", "unseen GPU", "unseen family")


def coverage(found: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Of every net and protocol the share inside with what chance allows, units and the median width, by basis."""
    cells = {(one["net"], one["protocol"], one["basis"]): one for one in found if one["basis"] in COVERED}
    for net, protocol in dict.fromkeys((net, protocol) for net, protocol, _ in cells):
        row: Row = {"net": net, "protocol": protocol}
        for basis in COVERED:
            one = cells.get((net, protocol, basis))
            row[f"{basis}: inside %"] = f"{one['inside']:.0f} ± {one['chance']:.0f} ({one['units']})" if one else None
            row[f"{basis}: width %"] = float(one["width"]) if one else None
        yield row


def corrected(nets: Iterable[str], protocol: str) -> Iterator[Row]:
    """Coverage and median width of an unseen family corrected by 100 rows, means over GPUs, their types by rows."""
    for net in nets:
        reduced = read_table(TABLES / f"{net}.{protocol}.reduced.json")
        cells = (reduced or read_table(TABLES / f"{net}.{protocol}.json")).get("corrected", {})
        if cells:
            yield {"net": net, "inside %": _over_gpus(cells, "coverage"), "width %": _over_gpus(cells, "width")}


def _over_gpus(cells: Mapping[str, Cell], figure: str) -> float | None:
    values = by_gpu(cells, [name.partition(" · ")[0] for name in cells], [], figure)
    return float(np.mean(list(values.values()))) if values else None


def ceilings() -> Iterator[Row]:
    """Share of held-out rows slower than the ceiling: mean over GPUs, all rows, and the farthest GPU."""
    for path in sorted(TABLES.glob("*.ceiling.json")):
        found = read_table(path)
        shares = {gpu: float(cell["slower"]) for gpu, cell in found.items()}
        weights = [cell["rows"] for cell in found.values()]
        farthest = max(shares, key=lambda gpu: abs(shares[gpu] - 80))
        mean, every = float(np.mean(list(shares.values()))), _weighted(list(shares.values()), weights)
        row = {"net": path.name.partition(".")[0], "rows": sum(weights), "mean over GPUs": mean, "all rows": every}
        yield row | {"farthest from 80": f"{farthest} {shares[farthest]:.1f}"}


def nets() -> list[str]:
    """Every net with weights."""
    return sorted(path.stem for path in WEIGHTS.glob("*.json"))


def worst(cells: Cells, fewest: int = 30) -> list[Row]:
    """The ten cells of largest error."""
    many: list[tuple[Key, Figures]] = [(key, found) for key, found in cells.items() if found.rows >= fewest]
    many.sort(key=lambda item: -item[1].mape)
    return [
        {"family": f"{key.family} {key.dtype}", "GPU": key.gpu, "stack": key.stack, "implementation": key.impl,
         "protocol": key.protocol, "rows": found.rows, "MAPE %": found.mape, "bias %": found.bias}
        for key, found in many[:10]
    ]  # fmt: skip

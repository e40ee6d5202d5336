"""Packs stored rows into the compact files that a data set ships as: gzipped JSON, a list a column, a file a family."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipewave.files import store, whole
from pipewave.measure.row_files import FORMAT

Row = dict[str, Any]


def pack(source: str | Path, folder: str | Path) -> dict[str, int]:
    """Write one packed file a family of `source` (a store) into `folder`; returns bytes by file name."""
    contents = store.read(source)
    names = {record["id"]: record["name"] for record in contents.of("name")}
    families: dict[str, list[Row]] = defaultdict(list)
    for row in {row["key"]: row for row in contents.of("row")}.values():
        families[row["case"]["kernel"]].append({name: value for name, value in row.items() if name != "t"})
    environments_ = list({record["id"]: record for record in contents.of("env")}.values())
    sizes = {}
    for family, members in sorted(families.items()):
        target = Path(folder) / f"{family}.json.gz"
        used = {kernel[0] for row in members for kernel in row.get("kernels", ())}
        body = {"format": FORMAT, "environments": environments_, "names": {i: names[i] for i in used if i in names}}
        members.sort(key=lambda row: (row["protocol"], row["impl"], json.dumps(row["case"], sort_keys=True)))
        whole.write(target, _gzip(body | {"rows": to_columns(members)}))
        sizes[target.name] = target.stat().st_size
    return sizes


def _gzip(body: Mapping[str, Any]) -> bytes:
    return gzip.compress(json.dumps(body, separators=(",", ":"), sort_keys=True).encode(), compresslevel=9, mtime=0)


def to_columns(members: Sequence[Row]) -> Row:
    """{column: [value a row]}; the fields of `case` are columns of their own, absent values are null."""
    flat = [{**{f"case.{k}": v for k, v in row["case"].items()}, **row} for row in members]
    for row in flat:
        del row["case"]
    return {name: [row.get(name) for row in flat] for name in sorted({name for row in flat for name in row})}

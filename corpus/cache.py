"""Read a family once; later calls take it from `.cache/corpus`, keyed by what was read and by the readers' own code."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from corpus.frame import Table, finish, gpu_name, repository, stacked
from corpus.rules import OWN
from corpus.select import newest
from corpus.sources import data_dir, tables


def load(family: str, data: str | Path | None = None, *, sources: tuple[str, ...] | None = None) -> pd.DataFrame:
    """All rows of a family. `sources` keeps only these (`aiconfigurator`, `pipeweave`, `vidur`, ...).

    Raises FileNotFoundError when no source has a file.
    """
    folder = data_dir(data)
    wanted = [table for table in tables(family) if sources is None or table.source in sources]
    frames = [_cached(table, folder) for table in wanted if table.files(folder)]
    if not frames:
        raise FileNotFoundError(f"no {family} tables under {folder}: set PIPEWAVE_DATA or pass the corpus folder")
    return _with_gpus(stacked(frames) if len(frames) > 1 else frames[0])


def training_rows(family: str, data: str | Path | None = None) -> pd.DataFrame:
    """`newest(load(family))` from the cache: what training and the accuracy tables use."""
    folder = data_dir(data)
    registry = sorted((repository() / "src" / "pipewave" / "gpus").rglob("*.*"))
    parts = [_key(table, folder) for table in tables(family)]
    parts += [file_hash(file) for file in (Path(__file__).with_name("select.py"), *registry)]
    kept = _folder() / f"newest-{family}-{hashlib.sha256(''.join(parts).encode()).hexdigest()[:16]}.parquet"
    if not kept.exists():
        _keep(newest(load(family, folder)), kept)
    return pd.read_parquet(kept)


def read(table: Table, folder: Path) -> pd.DataFrame:
    """Every file of a table, finished, without the cache."""
    frames = [finish(table.read(file, folder), table.family, table.source) for file in table.files(folder)]
    return stacked([frame for frame in frames if len(frame)] or frames[:1])


def file_hash(file: Path) -> str:
    """sha256 of a file's bytes, computed once a process for each state of the file."""
    state = file.stat()
    return _hash(file, state.st_size, state.st_mtime_ns)


@cache
def _hash(file: Path, _size: int, _mtime_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _cached(table: Table, folder: Path) -> pd.DataFrame:
    kept = _folder() / f"{_stem(table)}-{_key(table, folder)}.parquet"
    if not kept.exists():
        _keep(read(table, folder), kept)
    return pd.read_parquet(kept)


def _folder() -> Path:
    folder = repository() / ".cache" / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _keep(rows: pd.DataFrame, kept: Path) -> None:
    """Write beside and rename, so that a reader never meets half a file; older states of the same table go."""
    partial = kept.with_suffix(f".{os.getpid()}.partial")
    rows.to_parquet(partial)
    for stale in kept.parent.glob(f"{kept.stem[:-17]}-????????????????.parquet"):
        stale.unlink(missing_ok=True)
    partial.replace(kept)


def _stem(table: Table) -> str:
    folder, name = table.patterns[0].split("/")[1], table.patterns[0].rsplit("/", 1)[-1].split(".")[0]
    return "-".join(part.replace("*", "") for part in (table.source, table.family, folder, name))


def _key(table: Table, folder: Path) -> str:
    here = Path(__file__).parent
    code = [
        here / "frame.py",
        here / "rules.py",
        *((here / "as_run.py", here / "collected.json") if table.family == "fused_moe" else ()),
        here / f"{table.read.__module__.rsplit('.', 1)[-1]}.py",
    ]
    digest = hashlib.sha256(file_hash(folder / "CLEAN_RULES.json").encode())
    digest.update(json.dumps(_own_rules(table)).encode())
    for file in (*code, *table.files(folder)):
        digest.update(f"{file.name}:{file_hash(file)}\n".encode())
    return digest.hexdigest()[:16]


def _own_rules(table: Table) -> list[dict[str, Any]]:
    """Our own rules for a table: those for others do not make it read again."""
    named = {pattern.rsplit("/", 1)[-1].removesuffix("_perf.parquet") for pattern in table.patterns}
    return [rule for rule in json.loads(OWN.read_text(encoding="utf-8")) if rule["table"] in named]


def _with_gpus(rows: pd.DataFrame) -> pd.DataFrame:
    """`gpu` from `raw_gpu`, resolved at load so that a new alias needs no new cache."""
    names = {raw: gpu_name(str(raw)) for raw in rows["raw_gpu"].cat.categories}
    return rows.assign(gpu=rows["raw_gpu"].map(names).astype("category")).drop(columns="raw_gpu")

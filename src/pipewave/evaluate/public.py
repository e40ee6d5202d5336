"""Held-out rows of the public corpus as cases. The reader is the training code's: it needs a checkout and [train]."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from pipewave.errors import BadFile, MissingExtra, PipewaveError
from pipewave.evaluate.folds import HELD_OUT, fold
from pipewave.gpus import find
from pipewave.kernels import rows_of

Row = dict[str, Any]
ACTIVATIONS = {"mxfp4_mxfp8": ("mxfp4", ":mxfp8"), "int4_fp8": ("int4", ":w4afp8")}
CHECKOUT = Path(__file__).resolve().parents[3]


def rows(data: Path, tables: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of fold 0: newest version of each framework on each GPU, unflagged, capped, none of our own.

    `tables`: corpus tables, all that families name by default.

    MissingExtra without pandas or a checkout, BadFile where no corpus lies at `data`.
    """
    if not data.is_dir():
        raise BadFile(f"no corpus at {data}", field="data")
    corpus = _reader()
    known = _tables()
    for table in tables or known:
        frame = corpus.newest(corpus.load(table, data))
        groups = frame["group"].astype(str)
        held = groups.map({name: fold(name) for name in groups.unique()}) == HELD_OUT
        for given in frame[held & ~corpus.is_own(frame)].to_dict("records"):
            row = _row(known[table], given)
            if row is not None:
                yield row


def case_row(table: str, given: Mapping[str, Any]) -> Row | None:
    """The contract's case of a row of a corpus table; None for what the contract does not name."""
    return _row(_tables()[table], given)


def _reader() -> Any:
    try:
        if "train" not in sys.modules and find_spec("train") is None:
            _load_package(CHECKOUT / "train")  # an editable install knows the package only
        return import_module("train.corpus")
    except ImportError as error:
        needs = "a checkout of the repository and pip install 'pipewave[train]'"
        raise MissingExtra(f"the public corpus is read with the training code: {needs} ({error})") from error


def _load_package(folder: Path) -> None:
    """Load the training code of the checkout under its name; where there is none, importing it says so."""
    spec = spec_from_file_location(folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None or not folder.is_dir():
        return
    sys.modules[folder.name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[folder.name])


def _row(case_of: Callable[[Mapping[str, Any]], Row], given: Mapping[str, Any]) -> Row | None:
    """The contract's case of one row; None for what the contract does not name (a type, a GPU)."""
    dtype, impl = str(given["dtype"]), str(given["impl"])
    dtype, suffix = ACTIVATIONS.get(dtype, (dtype, ""))
    try:
        gpu = find(str(given["gpu"]))
        gpu.peak_flops(dtype)
    except PipewaveError:
        return None
    impl += suffix
    case = case_of(given) | {"dtype": dtype, "stack": str(given["stack"]), "impl": impl}
    latency = float(given["latency_us"])
    return {"case": case, "gpu": gpu.name, "protocol": str(given["protocol"]), "impl": impl, "latency_us": latency}


def _tables() -> dict[str, Callable[[Mapping[str, Any]], Row]]:
    """How a row of each corpus table reads as a case, in the order of the families."""
    return {rows.table: rows.case for rows in rows_of().values() if rows.case}

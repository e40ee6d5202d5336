"""What exporters share: predictions as engines run kernels, and tables written whole."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipewave.errors import BadInput
from pipewave.files import packaged
from pipewave.files.json_text import dumps
from pipewave.files.whole import write
from pipewave.gpus import GPU
from pipewave.models import Gqa, ModelSpec
from pipewave.prediction.api import predict

Row = dict[str, Any]


def names_of(part: str) -> Mapping[str, str]:
    """What a simulator calls kernels, its name → ours; or its methods → its operators."""
    return dict(packaged.shared(Path(__file__).with_name("names.json"))[part])


def served_us(calls: Sequence[Any], gpu: GPU) -> list[float]:
    """Latencies of kernel calls as engines run them, µs."""
    found: list[float] = predict(calls, gpu, protocol="serving").latency_us.tolist()
    return found


def check_equal_layers(model: ModelSpec, tool: str) -> Gqa:
    """The attention of a model of equal layers. BadInput for any other."""
    mixer = model.layers[0].mixer
    if len(model.grouped()) != 1 or not isinstance(mixer, Gqa):
        raise BadInput(f"model = {model.name}: {tool} describes equal layers of attention only", field="model")
    return mixer


def csv_table(path: Path, rows: Iterable[Row]) -> Path:
    """Rows of equal keys as CSV; the file."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write(path, text.getvalue().encode())
    return path


def json_file(path: Path, value: Any) -> Path:
    """A value as JSON; the file."""
    write(path, dumps(value).encode())
    return path

"""Files that an editor began with a byte-order mark are read like those without; an empty one is called so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipewave.errors import BadFile
from pipewave.gpus import find
from pipewave.models import load
from pipewave.simulate.arrival_files import read_trace
from pipewave.view import read

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip
GPU = {"base": "H100", "name": "Mine", "dram_gbps": 3000}
TRACE = "arrival_time,prompt_tokens,output_tokens\n0.0,900,60\n"


@pytest.mark.parametrize(
    ("name", "text", "reader"),
    [
        ("config.json", json.dumps(CONFIG), load),
        ("mine.json", json.dumps(GPU), find),
        ("mine.yaml", "base: H100\ndram_gbps: 3000\n", find),
        ("requests.csv", TRACE, lambda path: read_trace(path).input_len.tolist()),
        ("answer.json", '{"schema_version": 1}', read),
    ],
)
def test_a_mark_changes_nothing(tmp_path: Path, name: str, text: str, reader) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    plain = reader(file)
    file.write_text(text, encoding="utf-8-sig")
    assert reader(file) == plain


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_config_is_called_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadFile, match="is empty"):
        load(tmp_path)

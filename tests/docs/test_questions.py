"""Every command of the table of questions in docs/start.md answers; predictions say in a sentence what they rest on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pipewave.cli import build
from tests.command_line import CliRunner

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "data" / "measured" / "h200" / "traces"
FILES = {
    "CONFIG": ROOT / "src" / "pipewave" / "data" / "models" / "Qwen3-8B.json",
    "TRACE": TRACES / "trace-Llama-3.1-8B-tp1-4layers-eager-decode.json.gz",
    "BEFORE": TRACES / "trace-Llama-3.1-8B-tp1-graph-prefill.json.gz",
    "AFTER": TRACES / "trace-Llama-3.1-8B-tp1-4layers-eager-prefill.json.gz",
}
PREDICTS = {"predict", "estimate", "step", "serve", "plan", "trace"}
ROWS = re.findall(r"^\| ([^|]+?) \| `pipewave (.+)` \|$", (ROOT / "docs" / "start.md").read_text("utf-8"), re.MULTILINE)


def test_there_is_a_table() -> None:
    assert len(ROWS) > 12
    assert {shlex.split(command)[0] for _, command in ROWS} >= PREDICTS


@pytest.mark.parametrize("command", [command for _, command in ROWS])
def test_every_question_is_answered(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for what it writes
    words = [str(FILES.get(word, word)) for word in shlex.split(command)]
    found = CliRunner().invoke(build(), words)
    assert (found.exit_code, found.exception) == (0, None), found
    assert len(found.stdout) > 100
    if words[0] in PREDICTS:
        assert found.stdout.splitlines()[-1].startswith("confidence: ")

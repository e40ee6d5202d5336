"""The commands `web` and `ask`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from pipewave.cli import build
from pipewave.errors import BadFile, BadInput, MissingExtra
from tests.command_line import CliRunner

QUERY = '{"model": "Llama-3.1-8B", "gpu": "H200", "batch": 2, "input_len": 64, "output_len": 8}'


def test_without_the_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    done = CliRunner().invoke(build(), ["web", "--no-open"])
    assert isinstance(done.exception, MissingExtra)
    assert "pip install 'pipewave[web]'" in done.exception.message


def test_a_foreign_host_is_refused() -> None:
    pytest.importorskip("fastapi")
    done = CliRunner().invoke(build(), ["web", "--no-open", "--host", "0.0.0.0"])
    assert isinstance(done.exception, BadInput) and done.exception.field == "host"


def test_ask_needs_no_server_and_no_extra() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = sys.modules['uvicorn'] = sys.modules['starlette'] = None\n"
        "from pipewave.web.queries import answer; print(answer('serve', sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, QUERY], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["model"] == "Llama-3.1-8B"


def test_ask_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "question.json"
    file.write_text(QUERY)
    one, other = (CliRunner().invoke(build(), ["query", "serve", text]).stdout for text in (QUERY, f"@{file}"))
    assert json.loads(one) == json.loads(other)


@pytest.mark.parametrize(
    ("view", "question", "kind"),
    [("srve", "{}", BadInput), ("serve", "{", BadInput), ("serve", "{}", BadInput), ("serve", "@/none", BadFile)],
)
def test_wrong_questions_are_typed(view: str, question: str, kind: type[Exception]) -> None:
    assert isinstance(CliRunner().invoke(build(), ["query", view, question]).exception, kind)


def test_the_command_serves_until_it_is_ended() -> None:
    pytest.importorskip("fastapi")
    words = [sys.executable, "-m", "pipewave", "web", "--port", "0", "--no-open"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert found, said
        with urllib.request.urlopen(found[0] + "api/health", timeout=30) as reply:
            assert json.load(reply)["status"] == "ok"
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0
        assert "Traceback" not in server.stderr.read()

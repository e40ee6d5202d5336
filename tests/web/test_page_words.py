"""Messages and notes on the page name its own labels, not options of a command line."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pipewave
from pipewave.web.forms import page_words, worded

ROOMS = ("calls", "gpus", "kernels", "models", "prediction", "simulate", "step", "software", "traces")
# Files whose messages only a command or another program's user can meet.
ELSEWHERE = ("server_command.py", "client_command.py", "notation.py", "gaps.py", "matched.py", "hub.py")
OURS = re.compile(r"(?<![\w-])--[a-z][a-z-]+|`pipewave [a-z]+")
# Of Nsight Compute and Nsight Systems.
OTHERS = ("--metrics", "--csv", "--page", "--cuda-graph-trace", "--trace", "--format", "--report", "--type")


def raised() -> list[str]:
    """Texts of the library, with whatever is filled in left out."""
    folder = Path(pipewave.__file__).parent
    found = []
    for file in (path for room in ROOMS for path in (folder / room).rglob("*.py") if path.name not in ELSEWHERE):
        tree = ast.parse(file.read_text("utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        found += [node.value for node in texts if id(node) not in docs]
    return found


def test_no_message_keeps_an_option_or_a_command() -> None:
    named = [text for text in raised() if OURS.search(text) and " " in text and not text.startswith("pipewave ")]
    assert len(named) > 5  # the search finds what it must
    kept = [text for text in map(page_words, named) if set(OURS.findall(text)) - set(OTHERS)]
    assert kept == []


def test_labels_stand_for_options() -> None:
    assert page_words("x.json does not name its GPU: pass --gpu") == "x.json does not name its GPU: fill in “GPU”"
    said = page_words("does not name its steps: pass --q-lens and --kv-lens")
    assert said.endswith("fill in “New tokens” and “Cache lengths”")


def test_only_notes_of_an_answer_are_reworded() -> None:
    answer: Any = {"command": "pipewave trace --gpu H200", "calls": [{"note": "--kv-lens gives it", "name": "--gpu"}]}
    kept = worded(answer | {"notes": ("pass --gpu",)})
    assert kept["command"] == answer["command"] and kept["calls"][0]["name"] == "--gpu"
    assert kept["calls"][0]["note"] == "“Cache lengths” gives it" and kept["notes"] == ["fill in “GPU”"]


def test_an_error_reaches_the_page_in_its_words(client: Any) -> None:
    event = b'{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"device":0,"stream":7}}]}'
    reply = client.send("POST", "/api/trace?name=a.json", event)
    assert reply.json()["error"]["message"] == "a.json does not name its GPU: fill in “GPU”"

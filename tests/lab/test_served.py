"""What a server's engine does first: the plugin that a folder names, random bits, and waiting for its turn."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from lab.vllm_engine import packed, served


def test_the_folder_names_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(served.plugin_folder()), *sys.path])
    found = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "pipewave"]
    assert [entry.load() for entry in found] == [served.begin]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(served.packed, "draw", lambda: found.append("packed"))
    monkeypatch.setattr(served.gates, "draw", lambda: found.append("gates"))
    return found


def _named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_name", name, raising=False)


def test_only_the_engine_begins(drawn: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(served.RANDOM_GATES, "1")
    served.begin()
    assert drawn == []
    _named("EngineCore", monkeypatch)
    served.begin()
    assert drawn == ["packed", "gates"]


def test_the_engine_waits_for_its_turn(drawn: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = tmp_path / "turn.begin"
    monkeypatch.setenv(served.UNTIL, str(turn))
    monkeypatch.setattr(served.multiprocessing, "current_process", lambda: type("P", (), {"name": "EngineCore"}))
    waiting = threading.Thread(target=served.begin)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    turn.touch()
    waiting.join(10)
    assert not waiting.is_alive() and drawn == ["packed"]


@pytest.mark.slow  # imports torch
def test_bytes_are_drawn_and_scales_are_alike() -> None:
    torch: Any = pytest.importorskip("torch")
    zeros = {name: torch.zeros(64, 64, dtype=torch.uint8) for name in ("w13_weight", "w13_weight_scale")}
    zeros["norm"] = torch.zeros(64)
    packed.fill(zeros)
    assert zeros["w13_weight"].unique().numel() > 200
    assert (zeros["w13_weight_scale"] == packed.SCALE_EXPONENT).all() and (zeros["norm"] == 0).all()

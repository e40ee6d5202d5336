"""`pipewave measure`: the room's own arguments under the command line, and what a machine without a GPU is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pipewave.cli import measure as command
from pipewave.errors import MissingExtra
from pipewave.measure import __main__ as room
from pipewave.measure import rows


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    command.register(app)
    return app


def test_a_plan_on_the_fake_device_fills_a_store_and_sums_up(
    app: typer.Typer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "rows"
    arguments = ["measure", "--store", str(store), "--families", "attention", "--limit", "12", "--device", "fake"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len(rows(store)) == 12
    told = capfd.readouterr().err
    assert "12/12 jobs" in told
    assert "12 ok; 0 left" in told
    assert CliRunner().invoke(app, [*arguments, "--quiet"]).exit_code == 0
    told = capfd.readouterr().err
    assert "jobs" not in told
    assert "nothing measured; 0 left" in told


def test_every_argument_of_the_room_has_its_option(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"help", "compile_only"}
    given: dict[str, object] = vars(room.arguments(["--store", "x"]))
    parameters = {p.name for p in typer.main.get_command(app).commands["measure"].params}  # type: ignore[attr-defined]
    assert set(given) - hidden == parameters - hidden
    seen: list[list[str]] = []
    monkeypatch.setattr(room, "main", lambda argv: seen.append(argv) or 3)
    assert CliRunner().invoke(app, ["measure", "--store", "x", "--device", "fake"]).exit_code == 3
    assert vars(room.arguments(seen[0])) == given | {"device": "fake"}


def test_without_torch_or_a_gpu_the_error_says_what_to_install(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["measure", "--store", str(tmp_path / "rows")])
    assert isinstance(result.exception, MissingExtra)
    assert "pip install 'pipewave[gpu]'" in result.exception.message
    assert not (tmp_path / "rows").exists()

    class Blind:
        __version__ = "2.11"

        class cuda:  # noqa: N801 (the name torch uses)
            is_available = staticmethod(lambda: False)

    monkeypatch.setattr(command, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "torch", Blind)
    with pytest.raises(MissingExtra, match=r"torch 2\.11 sees none"):
        command.check_gpu()

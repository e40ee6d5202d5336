"""`pipewave measure`: the room's own arguments under the command line, and what a machine without a GPU is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab import microbench
from pipewave.cli import build
from pipewave.cli import measure as command
from pipewave.cli.command import Group
from pipewave.errors import MissingExtra, PipewaveError
from pipewave.measure import __main__ as room
from pipewave.measure import collectives, rows
from tests.command_line import CliRunner


@pytest.fixture
def app() -> Group:
    return build()


def test_a_plan_on_the_fake_device_fills_a_store_and_sums_up(
    app: Group, tmp_path: Path, capfd: pytest.CaptureFixture[str]
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


def test_every_argument_of_the_room_has_its_option(app: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"help", "compile_only"}
    given: dict[str, object] = vars(room.arguments(["--store", "x"]))
    parameters = {p.name for p in app.command("measure").params}
    assert set(given) - hidden == parameters - hidden
    seen: list[list[str]] = []
    monkeypatch.setattr(room, "main", lambda argv: seen.append(argv) or 3)
    assert CliRunner().invoke(app, ["measure", "--store", "x", "--device", "fake"]).exit_code == 3
    assert vars(room.arguments(seen[0])) == given | {"device": "fake"}


def test_without_torch_or_a_gpu_the_error_says_what_to_install(
    app: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--plan", "nosuch"], "plan"), (["--families", "gem"], "families"), (["--select", "colt"], "select")],
)
def test_options_that_name_nothing_are_refused_before_anything_starts(
    arguments: list[str], field: str, tmp_path: Path
) -> None:
    with pytest.raises(PipewaveError, match=field):
        room.main(["--store", str(tmp_path / "rows"), "--device", "fake", *arguments])
    assert not (tmp_path / "rows").exists()


def test_programs_without_a_gpu_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in (collectives, microbench):
        monkeypatch.setattr(program, "gpus", lambda: 0)
    assert collectives.main(["--store", str(tmp_path / "rows"), "--world", "2"]) == 2
    assert microbench.main(["--out", str(tmp_path / "card.json")]) == 2
    told = capsys.readouterr().err
    assert "world 2: left out, torch sees 0 GPUs" in told
    assert "no GPU to measure" in told
    assert not list(tmp_path.iterdir())

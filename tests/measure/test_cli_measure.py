"""`pipewave measure`: the room's own arguments under the command line, and what a machine without a GPU is told."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lab import collectives, microbench
from pipewave.cli import build
from pipewave.cli import measure as command
from pipewave.cli.command import Group
from pipewave.errors import MissingExtra, MissingField, PipewaveError
from pipewave.measure import rows, supervise
from tests.command_line import CliRunner


@pytest.fixture
def app() -> Group:
    return build()


@pytest.mark.slow
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


def test_every_option_of_the_room_is_one_of_the_command(app: Group) -> None:
    room = {field.name for field in fields(supervise.Options)}
    assert room == {parameter.name for parameter in app.command("measure").params}


def test_the_words_of_a_child_are_the_options_again(app: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    given = supervise.Options(store="x y", families="gemm", limit=3, quiet=True, budget_s=7.5, device="fake")
    seen: list[supervise.Options] = []
    monkeypatch.setattr(supervise, "run", lambda options: seen.append(options) or 3)
    assert CliRunner().invoke(app, ["measure", *given.words()]).exit_code == 3
    assert seen == [given]


def test_without_torch_or_a_gpu_the_error_says_what_to_install(
    app: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(app, ["measure", "--store", str(tmp_path / "rows")])
    assert isinstance(result.exception, MissingExtra)
    assert "pip install 'pipewave[gpu]'" in result.exception.message
    assert not (tmp_path / "rows").exists()

    class Blind:
        __version__ = "2.11"

        class cuda:  # noqa: N801 (the name torch uses)
            is_available = staticmethod(lambda: False)

    monkeypatch.setitem(sys.modules, "torch", Blind)
    with pytest.raises(MissingExtra, match=r"torch 2\.11 sees none"):
        command.need_gpu()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"plan": "nosuch"}, "plan"),
        ({"families": "gem"}, "families"),
        ({"select": "colt"}, "select"),
        ({"limit": -3}, "limit"),
    ],
)
def test_options_that_name_nothing_are_refused_before_anything_starts(
    given: dict[str, str], field: str, tmp_path: Path
) -> None:
    with pytest.raises(PipewaveError, match=field):
        supervise.run(supervise.Options(store=str(tmp_path / "rows"), device="fake", **given))
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


def test_rows_need_a_file_to_go_to() -> None:
    done = CliRunner().invoke(build(), ["measure", "--plan", "quick", "--store", "", "--device", "fake"])
    assert isinstance(done.exception, MissingField) and done.exception.field == "store"

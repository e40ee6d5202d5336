"""Options of commands: groups become options, and an option is spelled alike wherever it is taken."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from pipewave.cli import build
from pipewave.cli.command import Command, Group, Option
from tests.command_line import CliRunner


@dataclass(frozen=True)
class Point:
    """Where it lies."""

    x: Annotated[int, Option("--x", "--first")]
    y: Annotated[int, Option("--y")] = 7
    names: Annotated[list[str], Option("--name")] = field(default_factory=list)


def shown(point: Point, loud: Annotated[bool, Option("--loud")] = False) -> None:
    """Print what came in."""
    sys.stdout.write(f"{point} {loud}\n")


@pytest.fixture(scope="module")
def app() -> Command:
    return Command(shown)


@pytest.mark.parametrize(
    ("words", "point"),
    [
        (["--x", "1"], Point(1)),
        (["--first", "2", "--y", "3"], Point(2, 3)),
        (["--x", "1", "--name", "a", "--name", "b"], Point(1, 7, ["a", "b"])),
    ],
)
def test_a_group_is_filled_from_its_options(app: Command, words: list[str], point: Point) -> None:
    assert CliRunner().invoke(app, [*words, "--loud"]).output == f"{point} True\n"


def test_an_option_of_a_group_without_default_must_be_given(app: Command) -> None:
    assert CliRunner().invoke(app, ["--y", "3"]).exit_code == 2


def test_a_list_is_never_shared_between_two_runs(app: Command) -> None:
    first = CliRunner().invoke(app, ["--x", "1", "--name", "a"]).output
    assert first != CliRunner().invoke(app, ["--x", "1"]).output == f"{Point(1)} False\n"


def test_the_help_names_the_group(app: Command) -> None:
    assert "Where it lies" in CliRunner().invoke(app, ["--help"]).output


def test_an_engines_spelling_means_one_option_in_every_command() -> None:
    """Two commands that know one spelling know all spellings of that option."""
    known: dict[str, set[frozenset[str]]] = defaultdict(set)
    for parameter in (
        one for name in build().lines() if name != "predict" for one in _parameters(build().command(name))
    ):
        for spelling in parameter.opts:
            known[spelling].add(frozenset(parameter.opts))
    for spelling in ("--tp", "--pp", "--dp", "--ep", "--isl", "--osl", "--max-num-seqs", "--max-num-batched-tokens"):
        assert len(known[spelling]) == 1, (spelling, known[spelling])
        assert len(next(iter(known[spelling]))) > 1


def _parameters(command: Any) -> list[Any]:
    inner = [command.command(name) for name in command.lines()] if isinstance(command, Group) else []
    return [*command.params, *(one for each in inner for one in _parameters(each))]

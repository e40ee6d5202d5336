"""The installed wheel, as a new user gets it: commands, package data, and the oldest dependencies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pipewave as pw

COMMAND = Path(sys.executable).with_name("pipewave")


def run(*words: str) -> str:
    """What the installed command prints."""
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, check=True).stdout


def test_it_is_the_wheel_that_is_tested() -> None:
    assert "site-packages" in str(Path(pw.__file__))


@pytest.mark.parametrize(
    "words",
    [
        ["gpus"],
        ["predict", "gemm", "64", "4096", "4096"],
        [
            "estimate",
            "--model",
            "Llama-3.1-8B",
            "--gpu",
            "H200",
            "--batch",
            "1",
            "--input-len",
            "64",
            "--output-len",
            "4",
        ],
        ["plan", "--model", "Llama-3.1-8B", "--gpus", "H200", "--isl", "64", "--osl", "8", "--tp", "1"],
        ["tune", "explain", "gemm", "m=300,n=4096,k=4096"],
        ["calibrate", "list"],
    ],
)
def test_every_kind_of_command_runs(words: list[str]) -> None:
    assert run(*words)


def test_json_is_read_back() -> None:
    assert json.loads(run("predict", "gemm", "64", "4096", "4096", "--json"))


@pytest.mark.parametrize("word", ["predict", "gpus", "estimate", "serve", "plan", "trace", "tune", "measure", "model"])
def test_help_of_every_command(word: str) -> None:
    assert "Usage" in run(word, "--help")

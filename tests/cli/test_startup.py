"""Commands start cold in tenths of a second: help imports no numbers, and no command a parser of forms."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipewave.cli import build
from pipewave.errors import BadInput, MissingField, UnknownField
from tests.command_line import CliRunner

HEAVY = {"numpy", "pydantic", "rich", "yaml", "safetensors"}


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], HEAVY),
        (["estimate", "--help"], HEAVY),
        (["predict", "gemm", "64", "64", "64"], {"pydantic", "rich", "fastapi"}),
    ],
)
def test_a_command_loads_only_what_it_needs(words: list[str], unwanted: set[str]) -> None:
    code = f"import sys; from pipewave.cli import run; run({words}); sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not unwanted & set(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        (["estimat"], BadInput, "did you mean estimate?"),
        (["estimate", "--modle", "x"], UnknownField, "did you mean --model?"),
        (["estimate", "--users", "9"], UnknownField, "no option --users; see --help"),
        (["estimate", "--gpu", "H200"], MissingField, "missing option --model"),
        (["estimate", "--model"], MissingField, "--model needs a value"),
        (["estimate", "--batch", "many"], BadInput, "--batch = 'many': must be an integer"),
        (["web", "--port", "-1"], BadInput, "must be at least 0 and at most 65535"),
        (["gpus", "H200", "B200"], BadInput, "B200: a word too many"),
        (["plan", "--launch-as", "k8s"], BadInput, "--launch-as k8s: must be one of shell, docker, kubernetes, dynamo"),
        (["estimate", "--json=1"], BadInput, "takes no value"),
    ],
)
def test_wrong_words_are_typed_errors(words: list[str], kind: type[Exception], told: str) -> None:
    found = CliRunner().invoke(build(), words)
    assert isinstance(found.exception, kind) and told in str(found.exception)

"""Runs a command line inside this process: what it prints, its exit status, and the error it ends with."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from pipewave.cli import main
from pipewave.cli.command import Command, Group
from pipewave.errors import PipewaveError


@dataclass(frozen=True)
class Result:
    """How a command line ended. `exception` is an error of ours, which `main` would print."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None = None

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class CliRunner:
    """Runs commands as `pipewave` does."""

    def invoke(
        self,
        app: Group | Command,
        args: Sequence[str],
        *,
        input: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        catch_exceptions: bool = True,
    ) -> Result:
        raw = input.encode() if isinstance(input, str) else input
        stdin, out, err = io.TextIOWrapper(io.BytesIO(raw), "utf-8"), io.StringIO(), io.StringIO()
        code, problem = 0, None
        with redirect_stdout(out), redirect_stderr(err), patch("sys.stdin", stdin), patch.dict(os.environ, env or {}):
            try:
                code = app.run(args)
            except (PipewaveError, SystemExit) as raised:
                if not catch_exceptions and isinstance(raised, PipewaveError):
                    raise
                code, problem = 2, raised
        return Result(code, out.getvalue(), err.getvalue(), problem)


def as_a_process(*words: str, encoding: str = "utf-8", env: Mapping[str, str] | None = None) -> Result:
    """What `pipewave WORDS` prints and exits with: errors as people see them, letters as `encoding` has them."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding), io.StringIO()
    collected_after = gc.get_threshold()
    patches = patch("sys.argv", ["pipewave", *words]), patch.dict(os.environ, env or {})
    with redirect_stdout(out), redirect_stderr(err), patches[0], patches[1], pytest.raises(SystemExit) as ended:
        main()
    gc.set_threshold(*collected_after)
    out.flush()
    assert isinstance(ended.value.code, int)
    return Result(ended.value.code, out.buffer.getvalue().decode(encoding), err.getvalue())

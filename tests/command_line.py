"""Runs a command line inside this process: what it prints, its exit status, and the error it ends with."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

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

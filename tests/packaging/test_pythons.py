"""Interpreters that start are told from names that only look like one."""

import sys
from pathlib import Path

import pytest

from tests.packaging import pythons

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_shim_that_fails_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "shims" / f"python{HERE}", "#!/bin/sh\nexit 127\n")
    script = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    found = executable(tmp_path / "root" / "versions" / f"{HERE}.1" / "bin" / f"python{HERE}", script)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "root"))
    assert pythons.interpreter(HERE) == found


def test_another_version_under_the_name_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "python3.99", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.interpreter("3.99") is None

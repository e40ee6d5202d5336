"""A user's own file is run as an import would run it; what is wrong with it is said with a remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipewave.errors import BadFile, BadInput, MissingExtra
from pipewave.tune.source.inspect import kernel_file


def test_the_module_and_the_name_of_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def kernel(): return 3\n")
    module, name = kernel_file(f"{path}:kernel")
    assert getattr(module, name)() == 3


@pytest.mark.parametrize("named", ["kernel", "mine.py", ":kernel", "mine.py:"])
def test_what_is_no_file_and_kernel_is_refused(named: str) -> None:
    with pytest.raises(BadInput, match="must be FILE"):
        kernel_file(named)


@pytest.mark.parametrize(
    ("text", "said"), [("import nothing_of_the_kind", "nothing_of_the_kind"), ("1 / 0", "ZeroDivisionError"), ("(", "SyntaxError")]
)  # fmt: skip
def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(BadFile, match=said):
        kernel_file(f"{path}:kernel")


def test_a_missing_triton_names_the_extra_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernels.py"
    path.write_text("import triton\n")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtra, match=r"pipewave\[gpu\]"):
        kernel_file(f"{path}:kernel")

"""A user's own file, imported to find the kernel in it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from pipewave.errors import BadFile, BadInput, MissingExtra

EXTRA = ("triton", "torch")


def kernel_file(named: str) -> tuple[ModuleType, str]:
    """The module of `FILE.py:name`, and the name. Runs the file, as an import would.

    Raises:
        BadInput: not of that form. BadFile: no such file, or it cannot be imported. MissingExtra: what it imports of
        the extra `gpu` is not installed.
    """
    path, _, name = named.rpartition(":")
    if not path or not name:
        raise BadInput(f"{named!r}: must be FILE.py:kernel", field="kernel")
    return _imported(Path(path)), name


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadFile(f"{path}: no such file", field="kernel")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadFile(f"{path}: no Python file", field="kernel")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as problem:
        if problem.name not in EXTRA:
            raise BadFile(f"{path}: cannot be imported ({problem})", field="kernel") from problem
        raise MissingExtra(f"{path} needs {problem.name}: pip install 'pipewave[gpu]'", field="kernel") from problem
    except Exception as problem:  # a stranger's file may raise anything; whatever it is, the file is what is wrong
        raise BadFile(f"{path}: cannot be imported ({type(problem).__name__}: {problem})", field="kernel") from problem
    return module

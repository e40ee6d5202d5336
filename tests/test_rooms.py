"""Imports flow downwards: no circle among modules, no room imports one that stands above it, none touches `sys.path`.

Every import counts, also those inside functions and those for type checkers only.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import pipewave

ROOT = Path(pipewave.__file__).parent
# From the ground up; a room may import itself and what stands before it.
ROOMS = (
    "version", "errors", "results", "files", "calls", "gpus", "physics", "software", "kernels", "nets", "prediction",
    "models", "step", "simulate", "published", "told", "planning", "export", "tune", "measure", "traces", "calibrate",
    "view", "face", "web", "cli", "__main__",
)  # fmt: skip
PUBLIC = "pipewave"  # the package itself: names its rooms for lazy import, and nothing inside imports it


def modules(root: Path = ROOT) -> dict[str, Path]:
    found = {}
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a file imports anywhere; `from package import module` is an import of the module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they lead"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    ours = {name for name in names if name.split(".")[0] == PUBLIC}
    return {nearest(name, known) for name in ours}


def nearest(name: str, known: dict[str, Path]) -> str:
    while name not in known:
        name = name.rpartition(".")[0]
    return name


@cache
def graph(root: Path = ROOT) -> dict[str, set[str]]:
    known = modules(root)
    return {name: imported(path, known) - {name} for name, path in known.items()}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Modules that reach themselves, by removing again and again those that import nothing left."""
    left = {name: set(out) for name, out in edges.items()}
    while free := [name for name, out in left.items() if not out & left.keys()]:
        for name in free:
            del left[name]
    reached = [name for name in left if any(name in out for out in left.values())]
    return [sorted(reached)] if reached else []


def room(module: str) -> str:
    return [*module.split("."), PUBLIC][1]


def upwards(edges: dict[str, set[str]]) -> list[str]:
    height = {name: at for at, name in enumerate((*ROOMS, PUBLIC))}
    return sorted(
        f"{name} imports {other}"
        for name, out in edges.items()
        for other in out
        if room(name) != PUBLIC and room(name) != room(other) and height[room(other)] > height[room(name)]
    )


def test_every_module_stands_in_a_room() -> None:
    assert {room(name) for name in modules()} == {*ROOMS, PUBLIC}


def test_no_circles() -> None:
    edges = {name: out for name, out in graph().items() if name != PUBLIC}
    assert circles(edges) == []


def test_no_imports_upwards() -> None:
    assert upwards(graph()) == []


def test_nothing_in_the_package_changes_the_search_path() -> None:
    assert [path for path in modules().values() if "sys.path" in path.read_text()] == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    root = tmp_path / PUBLIC
    for name, text in {
        "gpus/a.py": "def f():\n    from pipewave.kernels import b\n",
        "kernels/b.py": "import pipewave.gpus.a\n",
        "kernels/c.py": "from pipewave.gpus.a import f\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).parent.joinpath("__init__.py").touch()
        (root / name).write_text(text)
    return root


def test_the_check_finds_circles_and_upward_imports(small: Path) -> None:
    edges = graph(small)
    assert circles(edges) == [["pipewave.gpus.a", "pipewave.kernels.b"]]
    assert upwards(edges) == ["pipewave.gpus.a imports pipewave.kernels.b"]

"""How the code is built, by numbers: `python -m qa.house [FOLDER ...]`, of this checkout or of any package folder.

Lines of Python, files, length of functions (median, 90th percentile), longest file, comparisons with the name of an
engine, a GPU, an architecture or a model (rules that are code and not data; `--names` lists them), groups of modules
that import one another in a circle, and, where the rooms are those of tests/test_rooms.py, imports that lead upwards.
Every import counts, also those inside functions and those for type checkers.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.gpus import find
from pipewave.gpus import names as gpu_names
from pipewave.models.load import names as builtins
from pipewave.software.engine_rules import names as engines

LONG = 25  # lines of a function
CHECKOUT = Path(__file__).resolve().parents[1]
ROOMS = CHECKOUT / "tests" / "test_rooms.py"
Edges = Mapping[str, set[str]]


def sources(root: Path) -> dict[str, ast.Module]:
    """Modules of a package by dotted name, parsed."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return found


def lengths(trees: Mapping[str, ast.Module]) -> list[int]:
    """Lines of every function, from its first decorator's end to its last line."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, functions)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]


def names() -> frozenset[str]:
    """Names of engines, GPUs, architectures and models that rules of data speak of."""
    gpus = [find(name) for name in gpu_names()]
    known = {*engines(), *builtins(), *(gpu.name for gpu in gpus), *(gpu.architecture for gpu in gpus)}
    return frozenset(name.lower() for name in known)


def named(trees: Mapping[str, ast.Module], known: frozenset[str]) -> list[str]:
    """Where code compares with such a name, or asks what a text begins with."""
    return [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.Call) and any(text.lower() in known for text in _compared(node))
    ]


def _compared(node: ast.Compare | ast.Call) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        sides: list[ast.expr] = [node.left, *node.comparators]
    else:
        sides = node.args if getattr(node.func, "attr", "") in ("startswith", "endswith") else []
    for side in sides:
        for each in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value.strip("-_")


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """What each module imports of its own package."""
    return {name: {other for other in _named(name, tree, trees) if other != name} for name, tree in trees.items()}


def _named(name: str, tree: ast.Module, known: Mapping[str, Any]) -> Iterator[str]:
    package = name.partition(".")[0]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for full in names:
            if full.split(".")[0] == package:
                while full not in known:
                    full = full.rpartition(".")[0]
                yield full


def circles(edges: Edges) -> list[set[str]]:
    """Groups of modules that reach one another, the package itself aside: it names its rooms for lazy import."""
    package = min(edges, key=len)
    inner = {name: {other for other in out if other != package} for name, out in edges.items() if name != package}
    reach = {name: _reached(name, inner) for name in inner}
    groups = {frozenset(other for other in inner if other in reach[name] and name in reach[other]) for name in inner}
    return [set(group) for group in groups if len(group) > 1]


def _reached(start: str, edges: Edges) -> set[str]:
    seen, todo = set[str](), [start]
    while todo:
        for other in edges[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def upwards(edges: Edges, rooms: Sequence[str]) -> int | None:
    """Imports from a room that stands higher; None where the folders are not these rooms."""
    height = {name: at for at, name in enumerate(rooms)}
    pairs = [(name.split(".")[1], other.split(".")[1]) for name, out in edges.items() for other in out if "." in other
             and "." in name]  # fmt: skip
    if any(room not in height for pair in pairs for room in pair):
        return None
    return sum(height[other] > height[room] for room, other in pairs)


def rooms() -> tuple[str, ...]:
    """The rooms in their order, from the test that holds them."""
    for node in ast.parse(ROOMS.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ROOMS":
            return tuple(ast.literal_eval(node.value))
    raise LookupError(f"no ROOMS in {ROOMS}")


def measured(root: Path) -> dict[str, Any]:
    """All figures of one package folder."""
    trees = sources(root)
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in root.rglob("*.py")}
    long, edges = np.array(lengths(trees)), imports(trees)
    return {
        "lines of Python": sum(lines.values()),
        "files": len(lines),
        "lines a file, mean": round(sum(lines.values()) / len(lines)),
        "longest file, lines": max(lines.values()),
        "functions": len(long),
        "lines a function, median": int(np.median(long)),
        "lines a function, 90th percentile": int(np.percentile(long, 90)),
        "lines a function, longest": int(long.max()),
        "functions over 25 lines": int((long > LONG).sum()),
        "comparisons with names": len(named(trees, names())),
        "circles of imports": len(circles(edges)),
        "imports upwards": upwards(edges, rooms()),
    }


def main() -> None:
    """A table, one column a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[CHECKOUT / "src" / "pipewave"])
    parser.add_argument("--names", action="store_true", help="list the comparisons with names")
    options = parser.parse_args()
    if options.names:
        print("\n".join(each for folder in options.folders for each in named(sources(folder), names())))
        return
    found = [measured(folder) for folder in options.folders]
    print("\n".join(f"| {name} | {' | '.join(str(one[name]) for one in found)} |" for name in found[0]))


if __name__ == "__main__":
    main()

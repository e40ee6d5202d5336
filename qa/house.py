"""How the repository is built, by numbers beside their bars: `python -m qa.house [--speed] [--names] [FOLDER ...]`.

Lines and files of the package and of the folders around it, lengths of files and functions, comparisons with names of
engines, GPUs and models (`qa.names`; `--names` lists them), imports in a circle, upwards or of what stands outside the
package, and the files that a warm question executes (`qa.walks`). `--speed` adds a GEMM, a table and an estimate on
every GPU (`bench.every_gpu`); `--tests FILE` the seconds of a run of `make test` that the file records. Given folders
are packages to compare, a column each, without bars.
"""

from __future__ import annotations

import argparse
import ast
import math
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qa.names import comparisons, known_names

LONG, SMALL = 25, 50  # lines of a function, of a file
CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "src" / "pipewave"
ROOMS = CHECKOUT / "tests" / "test_rooms.py"
OUTSIDE = ("bench", "corpus", "docs", "facts", "lab", "paper", "qa", "studies", "tests", "train")
Edges = Mapping[str, set[str]]
# The most that a figure may be; rates are the least.
BARS: dict[str, float] = {
    "lines of src": 46_000, "files of src": 330, "imports upwards": 0, "circles of imports": 0, "imports of outside": 0,
    "lines of bench and studies": 7_000, "lines of train": 7_000, "files executed, GEMM": 14,
    "files executed, estimate": 40, "files executed, serve case": 30, "GEMM on the H200, µs": 30,
    "GEMM on the slowest GPU, µs": 40, "estimate on the slowest GPU, ms": 4, "make test, s": 180,
}  # fmt: skip
LEAST = {"table on the slowest GPU, rows/s": 754_000}


def sources(root: Path) -> dict[str, ast.Module]:
    """Modules of a package by dotted name, parsed."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return found


def lengths(trees: Mapping[str, ast.Module]) -> list[tuple[int, str]]:
    """Lines and name of every function, from its `def` to its last line."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [(name, node) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, functions)]
    return [((node.end_lineno or node.lineno) - node.lineno + 1, f"{name}.{node.name}") for name, node in nodes]


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a module imports anywhere; for `from a import b` both may be meant, as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))


def outside(trees: Mapping[str, ast.Module]) -> list[str]:
    """Imports of folders that are not installed with the package, also by `import_module`."""
    return [f"{name} imports {one}" for name, tree in trees.items() for one in imported(tree)
            if one.split(".")[0] in OUTSIDE]  # fmt: skip


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """What each module imports of its own package."""
    return {name: {other for other in _own(name, tree, trees) if other != name} for name, tree in trees.items()}


def _own(name: str, tree: ast.Module, known: Mapping[str, Any]) -> Iterator[str]:
    package = name.partition(".")[0]
    for full in imported(tree):
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


def built(root: Path) -> dict[str, Any]:
    """Figures of one package folder."""
    trees = sources(root)
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in root.rglob("*.py")}
    functions, edges = lengths(trees), imports(trees)
    long = np.array([length for length, _ in functions])
    file, function = max(lines, key=lambda path: lines[path]), max(functions)
    return {
        "lines of src": sum(lines.values()),
        "files of src": len(lines),
        f"files of at most {SMALL} lines": sum(count <= SMALL for count in lines.values()),
        "lines a file, mean": round(sum(lines.values()) / len(lines)),
        "longest file": f"{lines[file]} ({file.relative_to(root)})",
        "functions": len(long),
        "lines a function, median": int(np.median(long)),
        "lines a function, 90th percentile": int(np.percentile(long, 90)),
        "longest function": f"{function[0]} ({function[1]})",
        f"functions over {LONG} lines": int((long > LONG).sum()),
        "comparisons with names": len(comparisons(trees, known_names())),
        "circles of imports": len(circles(edges)),
        "imports upwards": upwards(edges, rooms()),
        "imports of outside": len(outside(trees)),
    }


def around() -> dict[str, int]:
    """Lines of Python beside the package, of files that git knows."""
    found = {name: _lines(name) for name in OUTSIDE}
    return {"lines of bench and studies": found["bench"] + found["studies"]} | {
        f"lines of {name}": count for name, count in found.items() if name not in ("bench", "studies")
    }


def _lines(folder: str) -> int:
    listed = subprocess.run(["git", "ls-files", f"{folder}/*.py"], cwd=CHECKOUT, capture_output=True, text=True)
    paths = [CHECKOUT / name for name in listed.stdout.splitlines()]
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths if path.exists())


def executed() -> dict[str, int]:
    """Files that warm questions execute."""
    from qa.walks import walks

    return {f"files executed, {name}": len(found) for name, found in walks().items()}


def speed() -> dict[str, float]:
    """On the H200, and on the slowest GPU of the registry."""
    from bench.every_gpu import measured

    found = measured()
    gemm, table, estimate = (dict(zip(found, column, strict=True)) for column in zip(*found.values(), strict=True))
    return {
        "GEMM on the H200, µs": round(gemm["H200"], 1),
        "GEMM on the slowest GPU, µs": round(max(gemm.values()), 1),
        "table on the slowest GPU, rows/s": round(min(table.values())),
        "estimate on the slowest GPU, ms": round(max(ms for ms in estimate.values() if not math.isnan(ms)), 2),
    }


def tests(log: Path) -> dict[str, float]:
    """Seconds of a run, from pytest's last line."""
    said = re.findall(r"passed.* in ([\d.]+)s", log.read_text("utf-8"))
    return {"make test, s": float(said[-1])} if said else {}


def line(name: str, value: Any) -> str:
    """A figure, its bar, and whether it keeps to it."""
    if name in LEAST:
        return f"| {name} | {value:,} | ≥ {LEAST[name]:,} | {'yes' if value >= LEAST[name] else 'NO'} |"
    if name in BARS and value is not None:
        return f"| {name} | {value:,} | ≤ {BARS[name]:,} | {'yes' if value <= BARS[name] else 'NO'} |"
    return f"| {name} | {value} | | |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="packages to compare, instead of this repository")
    parser.add_argument("--names", action="store_true", help="list the comparisons with names")
    parser.add_argument("--speed", action="store_true", help="also time questions on every GPU")
    parser.add_argument("--tests", type=Path, help="what a run of the tests printed")
    options = parser.parse_args()
    if options.names:
        known = known_names()
        print("\n".join(one for root in options.folders or [PACKAGE] for one in comparisons(sources(root), known)))
    elif options.folders:
        columns = [built(root) for root in options.folders]
        print("\n".join(f"| {name} | {' | '.join(str(one[name]) for one in columns)} |" for name in columns[0]))
    else:
        found = built(PACKAGE) | around() | executed() | (speed() if options.speed else {})
        found |= tests(options.tests) if options.tests else {}
        print("\n".join(line(name, value) for name, value in found.items()))


if __name__ == "__main__":
    main()

"""`python tests/packaging/lowest.py pyproject.toml`: the oldest versions of its dependencies, as constraints."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?>=([\d.]+)")


def constraints(project: dict[str, object]) -> list[str]:
    """`name==version` of every core dependency with a lower bound; one without is an error."""
    dependencies = project["dependencies"]
    assert isinstance(dependencies, list)
    found = [REQUIREMENT.match(text) for text in dependencies]
    missing = [text for text, match in zip(dependencies, found, strict=True) if match is None]
    if missing:
        raise SystemExit(f"no lower bound: {', '.join(missing)}")
    return [f"{match[1]}=={match[2]}" for match in found if match]


if __name__ == "__main__":
    with Path(sys.argv[1]).open("rb") as file:
        sys.stdout.write("\n".join(constraints(tomllib.load(file)["project"])) + "\n")

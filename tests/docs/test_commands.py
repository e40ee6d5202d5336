"""Commands of the repository: those that texts name exist, and those with options say them under `--help`."""

from __future__ import annotations

import importlib
import re
import runpy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("bench", "corpus", "docs/tools", "examples", "facts", "lab", "paper", "qa", "studies", "train")
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "train/README.md", ROOT / "Makefile", ROOT / ".ci/run")
SOURCES = [path for room in (*ROOMS, "src") for path in sorted((ROOT / room).rglob("*.py"))]
# Rules say which command their numbers come from.
RULES = [path for kind in ("json", "yaml") for path in sorted((ROOT / "src").rglob(f"*.{kind}"))]
COMMAND = re.compile(rf"python\)? -m ((?:{'|'.join(room.split('/')[0] for room in ROOMS)})\b[\w.]*\w)([^`\n|;&\"]*)")


def commands() -> Iterator[str]:
    """Every module outside of the package that is run."""
    for path in SOURCES:
        name = path.relative_to(ROOT).with_suffix("")
        if name.parts[0] != "src" and (name.name == "__main__" or "__main__" in path.read_text(encoding="utf-8")):
            yield ".".join(part for part in name.parts if part != "__main__")


def named() -> dict[str, set[str]]:
    """Options of each command that texts name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (*PAGES, *SOURCES, *RULES):
        for name, rest in COMMAND.findall(path.read_text(encoding="utf-8")):
            found[name].update(re.findall(r"--[a-z][\w-]*", rest))
    return found


NAMED = named()
COMMANDS = sorted(commands())


def test_every_command_that_a_text_names_is_there() -> None:
    assert sorted(NAMED.keys() - set(COMMANDS)) == []


def test_every_target_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    texts = [path.read_text(encoding="utf-8") for path in PAGES]
    assert {
        name for text in texts for words in re.findall(r"`make ([a-z0-9 -]+)", text) for name in words.split()
    } <= targets


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a module that another one imported before is run anew
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_starts_and_has_the_options_that_texts_name(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ROOT.joinpath(*name.split("."))
    file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
    monkeypatch.setattr("sys.argv", [name, "--help"])
    try:
        if "ArgumentParser(" not in file.read_text(encoding="utf-8"):
            importlib.import_module(name)
            return
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] in {"pipewave", "tests", *(room.partition("/")[0] for room in ROOMS)}:
            raise
        pytest.skip(f"needs {missing.name}")
    assert ended.value.code in (0, None)
    printed = capsys.readouterr().out
    assert not [option for option in NAMED.get(name, ()) if option not in printed]

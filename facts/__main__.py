"""Facts of engine releases, read from their packages.

`python -m facts vllm==0.33.0` prints (or writes with `--out`) each fact with the file and line that it was read from,
and what the source does not settle as questions. `python -m facts diff vllm 0.24.0 0.33.0` prints what changes for a
deployment. `python -m facts rules` reads every release of the last year and writes the rules that deployments follow;
`python -m facts check` counts them against what was read by hand. A package is downloaded once into `--cache`, and
neither installed nor imported.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from facts import rules
from facts.facts import FACTS, read
from facts.reading import Found, forget
from facts.sources import Release, fetch, number, versions

CACHE = Path("build/releases")
WIDTH = 60  # characters of a value in a table


def document(release: Release, found: Mapping[str, Found]) -> dict[str, Any]:
    """Facts of a release as they are written."""
    facts = {name: {"value": one.value, "at": one.at} for name, one in found.items()}
    asked = {name: list(one.questions) for name, one in found.items() if one.questions}
    return {
        "engine": release.engine,
        "version": release.version,
        "day": release.day,
        "facts": facts,
        "questions": asked,
    }


def changes(before: Mapping[str, Found], after: Mapping[str, Found]) -> list[tuple[str, str, str]]:
    """Facts that differ between two releases: name, value before, value after."""
    names = [*before, *(name for name in after if name not in before)]
    return [row for name in names for row in _change(name, _value(before, name), _value(after, name))]


def _value(found: Mapping[str, Found], name: str) -> Any:
    return found[name].value if name in found else None


def _change(name: str, old: Any, new: Any) -> list[tuple[str, str, str]]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [row for key in keys for row in _change(f"{name} {key}", old.get(key), new.get(key))]
    if isinstance(old, list) and isinstance(new, list) and len(old) + len(new) > 40:
        gone, come = ([one for one in left if one not in right] for left, right in ((old, new), (new, old)))
        return [(name, f"{len(gone)} gone", f"{len(come)} new: {come[:3]}")]
    return [(name, _short(old), _short(new))]


def _short(value: Any) -> str:
    if isinstance(value, str) and "\n" in value:
        return f"{value.count(chr(10)) + 1} lines of code"
    text = "–" if value is None else str(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _release(engine: str, version: str, cache: Path) -> Release:
    if engine not in FACTS:
        raise SystemExit(f"facts: no reader for {engine!r}; known: {', '.join(FACTS)}")
    try:
        return fetch(engine, next(reversed(versions(engine))) if version == "latest" else version, cache)
    except LookupError as error:
        raise SystemExit(f"facts: {error}") from error


def _documents(engine: str, first: str, cache: Path) -> Iterator[dict[str, Any]]:
    """Of each release from one on, oldest first; its text is dropped once it is read."""
    for version in versions(engine):
        if number(version) >= number(first):
            release = fetch(engine, version, cache)
            yield json.loads(json.dumps(document(release, read(release))))
            forget()
            vars(release).pop("files", None)
            print(f"{engine} {version}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Read releases, or compare two."""
    parser = argparse.ArgumentParser(prog="python -m facts", description=__doc__)
    parser.add_argument(
        "what", nargs="+", help="engine==version (or ==latest) …; or: diff ENGINE VERSION VERSION; rules; check"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where packages are kept (default {CACHE})")
    parser.add_argument("--out", type=Path, help="folder for one YAML file a release; default: standard output")
    options = parser.parse_args(argv)
    if options.what[0] == "diff":
        if len(options.what) != 4:
            parser.error("diff takes an engine and two versions")
        _, engine, old, new = options.what
        before, after = (read(_release(engine, version, options.cache)) for version in (old, new))
        for row in [("fact", old, new), *changes(before, after)]:
            print(f"{row[0]:44}  {row[1]:{WIDTH}}  {row[2]}")
        return
    if options.what == ["rules"]:
        texts = {engine: list(_documents(engine, first, options.cache)) for engine, first in rules.FIRST.items()}
        rules.FILE.write_text(rules.releases(texts), "utf-8")
        print(f"{rules.FILE}; now: python -m pipewave.files.manifest --write")
        return
    if options.what == ["check"]:
        counts = list(rules.check())
        for name, field, same, of in counts:
            if same < of:
                print(f"{name} {field}: {same} of {of} deployments as read by hand")
        equal, every = sum(row[2] for row in counts), sum(row[3] for row in counts)
        print(f"{equal:,} of {every:,} defaults as read by hand ({100 * equal / every:.1f} %)")
        return
    for asked in options.what:
        engine, _, version = asked.partition("==")
        release = _release(engine, version or "latest", options.cache)
        text = yaml.safe_dump(document(release, read(release)), sort_keys=False, width=120)
        if options.out is None:
            sys.stdout.write(text)
            continue
        options.out.mkdir(parents=True, exist_ok=True)
        beside = options.out / f"{engine}-{release.version}.yaml.part"
        beside.write_text(text, "utf-8")
        beside.replace(beside.with_suffix(""))
        print(options.out / f"{engine}-{release.version}.yaml")


if __name__ == "__main__":
    main()

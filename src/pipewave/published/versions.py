"""Which version of an engine answers for a deployment: the one named, the release that a nightly build became, or,
where none is named, the one that public runs without a version had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipewave.files import packaged
from pipewave.software.engine import numbered
from pipewave.software.engine_rules import read as engine_file

UNVERSIONED = Path(__file__).with_name("unversioned.yaml")
RELEASES, DYNAMO = UNVERSIONED.with_name("releases.yaml"), UNVERSIONED.with_name("dynamo.yaml")
DAY = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")
V0 = "V0"  # in the words that date runs of vLLM's first engine
NIM_ENGINE = "0.17.0"  # of TensorRT-LLM: what the NIMs of early 2025 ran, whose own versions are 1.x
OLD_ENGINES = {"vllm": "0.6.0", "trtllm": "0.12.0"}  # what 2024's runs under that name were
# Dynamo's versions, as tables of its deployments write them; TensorRT-LLM's own are 0.12 to 1.x and `rc` candidates.
OF_DYNAMO = {"trtllm": re.compile(r"0\.[5-9]\.\d+(\.post\d+|-rc.*)|1\.\d+\.\d+-dev\.\d+")}


class Version(NamedTuple):
    """A version that answers, whether the deployment named it by number, and notes where it did not."""

    number: str
    given: bool
    notes: tuple[str, ...] = ()


def version_of(engine: str, named: str | None, model_type: str, *, served: bool) -> Version:
    """The version for a deployment that says `named`. served: requests come to a server; a static batch of an engine
    without a version is answered as the newest.
    """
    text = named or ""
    if number := _by_number(engine, text):
        return Version(number, given=True)
    if became := release_after(engine, text):
        note = f"version {text!r} answered as {became}, what it became, and the interval is wider"
        return Version(became, given=False, notes=(note,))
    number, why = assumed_version(engine, model_type) if served else ("", "")
    said = f"version {text!r} has no number" if text else "version not given"
    return Version(
        number, given=False, notes=(f"{said}: {why or 'its default is assumed'}, and the interval is wider",)
    )


def newest(engine: str) -> str:
    """The newest version that is known of an engine."""
    return str(engine_file(engine)["version"])


def _by_number(engine: str, named: str) -> str:
    """The version of the engine by number, empty where the words hold none."""
    if is_disaggregated(engine, named):
        return engine_of_dynamo(named)
    if named.startswith("NIM"):
        return NIM_ENGINE
    return numbered(OLD_ENGINES.get(engine, "") if V0 in named else named)


def is_disaggregated(engine: str, version: str | None) -> bool:
    """Whether a version can only be Dynamo's own, whose published deployments have prefill and decode apart."""
    return engine in OF_DYNAMO and bool(OF_DYNAMO[engine].fullmatch(version or ""))


def assumed_version(engine: str, model_type: str = "") -> tuple[str, str]:
    """The version of published deployments of an engine that do not tell theirs, and a note: for a model that it does
    not read yet the first version that does. Empty for an engine whose default version will do.
    """
    found = packaged.yaml(UNVERSIONED).get(engine)
    if found is None:
        return "", ""
    if first := found.get("models", {}).get(model_type):
        return first["version"], f"{first['version']} assumed, the first that reads the model"
    return found["version"], found["note"]


@cache
def releases(engine: str) -> Mapping[str, str]:
    """The days on which an engine's versions came out, the oldest first; empty where none is known."""
    return {version: str(day) for version, day in packaged.yaml(RELEASES).get(engine, {}).items()}


def release_after(engine: str, version: str) -> str:
    """The first release after the day that a nightly build's name holds, which it became; empty where it holds none or
    no later release is known.
    """
    found = DAY.search(version) if "nightly" in version else None
    built = "-".join(found.groups()) if found else "9"
    return next((name for name, day in releases(engine).items() if day >= built), "")


def engine_of_dynamo(version: str) -> str:
    """The TensorRT-LLM of a version of Dynamo, the last before it where it has no line; empty below the first."""
    known = {_order(name): engine for name, engine in packaged.yaml(DYNAMO)["trtllm"].items()}
    older = [order for order in known if order <= _order(version)]
    return known[max(older)] if older else ""


def _order(version: str) -> tuple[int, ...]:
    """Numbers of a version; candidates and development builds count as the release they lead to."""
    base, _, post = version.partition(".post")
    numbers = re.findall(r"\d+", re.split(r"-|rc", base)[0])
    return (*map(int, numbers), int(post) if post.isdigit() else 0)

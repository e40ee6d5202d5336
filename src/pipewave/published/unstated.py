"""What a deployment leaves unsaid, filled by one rule whoever asks: `Stated` becomes a `Setup` and notes.

A setting that nobody stated is the one that public launches of this engine, version and model set (`recipes.json`), and
where they set none the engine's own default; an engine without a version is answered as the version that public runs
without one had. Each is noted. A pasted command line says all: what it leaves out is the engine's default, and its
newest version where it names none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pipewave.errors import CannotShard, MissingField
from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.gpus import find as find_gpu
from pipewave.models import ModelSpec
from pipewave.models.kernels import Deployment
from pipewave.models.shard import ALONE
from pipewave.published.recipes import Recipe, Requests, find
from pipewave.simulate.pools import Side
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import NONE, Speculative
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.traffic import Traffic
from pipewave.software.engine import numbered, parts
from pipewave.software.engine_rules import read as engine_file
from pipewave.step import find_engine

METHOD = "speculative"  # of a recipe: what drafts; the launch of pools says it for them
DRAFTS = "drafts"  # of a recipe: tokens that MTP heads draft where a deployment names the method alone
# Engines whose published rows square dp, square tp, or state the group as tp, too.
SQUARED, SQUARED_TP, TWICE = ("trtllm",), ("sglang",), ("vllm",)
UNVERSIONED = Path(__file__).with_name("unversioned.yaml")
RELEASES, DYNAMO = UNVERSIONED.with_name("releases.yaml"), UNVERSIONED.with_name("dynamo.yaml")
DAY = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")
V0 = "V0"  # in the words that date runs of vLLM's first engine
NIM_ENGINE = "0.17.0"  # of TensorRT-LLM: what the NIMs of early 2025 ran, whose own versions are 1.x
OLD_ENGINES = {"vllm": "0.6.0", "trtllm": "0.12.0"}  # what 2024's runs under that name were
# Dynamo's versions, as tables of its deployments write them; TensorRT-LLM's own are 0.12 to 1.x and `rc` candidates.
OF_DYNAMO = {"trtllm": re.compile(r"0\.[5-9]\.\d+(\.post\d+|-rc.*)|1\.\d+\.\d+-dev\.\d+")}
KEPT = 64  # deployments, filled
DEFAULT_ENGINE = "vllm"  # at its newest version, where no engine is named


def default_engine() -> str:
    """The engine where none is named: with its newest version."""
    return f"{DEFAULT_ENGINE}:{newest(DEFAULT_ENGINE)}"


@dataclass(frozen=True, slots=True)
class Stated:
    """A deployment as somebody states it."""

    model: ModelSpec
    gpu: str | GPU
    setup: Setup  # what has its default here is unsaid, but for the fields in `said`; engine and version stand apart
    engine: str | None = None  # by name, or with its version: vllm:0.22.1
    version: str | None = None  # in any words
    mode: str = "serve"  # serve, estimate or offline
    said: frozenset[str] = frozenset()  # fields of `setup` that were stated to be as they are by default
    gpus: int | None = None  # of a replica, where tables leave open what they count twice
    pools: tuple[Side | None, Side | None] | None = None  # prefill and decode engines
    disaggregated: bool | None = None  # it has such pools, whether or not they are stated (None: as its version tells)
    complete: bool = False  # a command line as pasted: nothing is unsaid

    @property
    def named(self) -> tuple[str, str | None]:
        """Engine and version; the newest version where no engine is named at all."""
        if self.engine is None:
            return DEFAULT_ENGINE, self.version or newest(DEFAULT_ENGINE)
        name, version = parts(self.engine)
        known = newest(name) if self.complete else None
        return name, self.version or version or known

    @property
    def apart(self) -> bool:
        """Whether prompts have engines of their own."""
        return bool(self.pools or self.guessed_pools)

    @property
    def guessed_pools(self) -> bool:
        """Whether they have, and nothing says which."""
        if self.pools:
            return False
        return is_disaggregated(*self.named) if self.disaggregated is None else self.disaggregated

    def sides(self) -> tuple[Side, Side] | None:
        """Both stated pools. Raises MissingField where one is missing."""
        prefill, decode = self.pools or (None, None)
        if prefill and decode:
            return prefill, decode
        if prefill or decode:
            missing = "decode" if prefill else "prefill"
            raise MissingField("disaggregation needs both pools, prefill and decode", field=missing)
        return None


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
    note = f"{said}: {why or 'its default is assumed'}, and the interval is wider"
    return Version(number, given=False, notes=(note,))


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
    found = packaged.shared(UNVERSIONED).get(engine)
    if found is None:
        return "", ""
    if first := found.get("models", {}).get(model_type):
        return first["version"], f"{first['version']} assumed, the first that reads the model"
    return found["version"], found["note"]


@cache
def releases(engine: str) -> Mapping[str, str]:
    """The days on which an engine's versions came out, the oldest first; empty where none is known."""
    return {version: str(day) for version, day in packaged.shared(RELEASES).get(engine, {}).items()}


def release_after(engine: str, version: str) -> str:
    """The first release after the day that a nightly build's name holds, which it became; empty where it holds none or
    no later release is known.
    """
    found = DAY.search(version) if "nightly" in version else None
    later = (name for name, day in releases(engine).items() if found and day >= "-".join(found.groups()))
    return next(later, "")


def engine_of_dynamo(version: str) -> str:
    """The TensorRT-LLM of a version of Dynamo, the last before it where it has no line; empty below the first."""
    known = {_order(name): engine for name, engine in packaged.shared(DYNAMO)["trtllm"].items()}
    older = [order for order in known if order <= _order(version)]
    return known[max(older)] if older else ""


def _order(version: str) -> tuple[int, ...]:
    """Numbers of a version; candidates and development builds count as the release they lead to."""
    base, _, post = version.partition(".post")
    numbers = re.findall(r"\d+", re.split(r"-|rc", base)[0])
    return (*map(int, numbers), int(post) if post.isdigit() else 0)


class Degrees(NamedTuple):
    """Parallel degrees, and how they were read where that is not as written."""

    tp: int
    ep: int
    dp: int
    note: str = ""


def degrees_of(engine: str, tp: int, ep: int, dp: int, gpus: int | None, *, tagged: bool = False) -> Degrees:
    """The degrees of one group of GPUs, which published tables count twice. `gpus`: its size, if given; `tagged`: the
    version is the tag of an image, without a number.

    A group of G GPUs whose attention is data parallel and whose experts lie on all of them is dp = G, ep = G. Tables
    made from launch arguments that hold G in one field and "attention DP: yes" in another write dp = G², ep = G (the
    same measurements stand in the corpus once as dp = 8 and once as dp = 64). With tensor-parallel attention it is
    tp = G, ep = G; some tables write tp = G² (tp 4 and tp 16, both with ep 4, hold the same launches), or tp = G,
    dp = G, ep = G² (their addresses end in tp4_ep4). A case that says `gpus` is taken by its word.
    """
    literal = tp * dp
    if gpus == literal:
        return Degrees(tp, ep, dp)
    if engine in SQUARED and tp == 1 and ep > 1 and dp == ep**2:
        written, found = f"dp {dp} with ep {ep}", (1, ep, ep)
    elif (engine in SQUARED_TP or tagged) and dp == 1 and ep > 1 and tp == ep**2:
        written, found = f"tp {tp} with ep {ep}", (ep, ep, 1)
    elif engine in TWICE and tp > 1 and dp == tp and ep == tp * dp:
        written, found = f"tp {tp}, dp {dp} with ep {ep}", (tp, tp, 1)
    else:
        return Degrees(tp, ep, dp)
    return Degrees(
        *found,
        f"{written} read as one group of {found[0] * found[2]} GPUs, as published tables count it twice; "
        f"give gpus = {literal} to have it literally",
    )


class Filled(NamedTuple):
    """A deployment with nothing unsaid."""

    setup: Setup
    notes: tuple[str, ...]
    guessed_pools: bool  # prompts have engines of their own, and nothing says which


def fill(stated: Stated, traffic: Traffic) -> Filled:
    """What is stated, and what public launches set for such requests where nothing is."""
    return _filled(stated, traffic.concurrency, int(traffic.input_len.max()), int(traffic.output_len.max()))


@lru_cache(maxsize=KEPT)
def _filled(stated: Stated, flight: int | None, prompt: int, output: int) -> Filled:
    """The same for so many requests in flight, and tokens of the longest prompt and output."""
    name, named = stated.named
    version = version_of(name, named, stated.model.model_type, served=stated.mode == "serve")
    said = stated.setup
    literal = said.tp * said.dp if stated.complete else stated.gpus
    degrees = degrees_of(name, said.tp, said.ep, said.dp, literal, tagged=bool(named) and not version.given)
    engine = f"{name}:{version.number}"
    named_one = stated.version or (stated.engine and parts(stated.engine)[1])  # not the newest of an engine or a line
    assumed = not (version.given and named_one)
    setup = replace(said, tp=degrees.tp, ep=degrees.ep, dp=degrees.dp, engine=engine, version_assumed=assumed)
    recipe = Recipe() if stated.complete else _recipe(stated, setup, version, flight, prompt, output)
    chosen = {name: value for name, value in recipe.settings.items() if name not in (DRAFTS, METHOD)}
    chosen["tp"] = setup.tp // chosen.get("dp", 1)  # a launch with data-parallel attention splits the same GPUs
    how = _drafting(stated, recipe)
    if how and not stated.complete:
        chosen[METHOD] = how.drafting(recipe.settings[DRAFTS]) if DRAFTS in recipe.settings else how
        if setup.max_num_seqs is None:  # launches that draft raise an engine's limit for it
            chosen = {"max_num_seqs": find_engine(engine).scheduler.max_requests} | chosen
    elif setup.speculative == NONE:
        chosen[METHOD] = None
    notes = (*filter(None, [degrees.note]), *dict.fromkeys(recipe.notes.values()), *version.notes)
    return Filled(replace(setup, **chosen), notes, stated.guessed_pools)


def _recipe(stated: Stated, setup: Setup, version: Version, flight: int | None, prompt: int, output: int) -> Recipe:
    """What public launches set of what is unsaid."""
    pools = stated.sides()
    setup = pools[1].of(setup) if pools else setup
    engine = find_engine(setup.engine)
    try:
        parallel = setup.parallel
    except CannotShard:
        parallel = ALONE
    facts = Deployment(stated.model, parallel).facts(find_gpu(stated.gpu))
    drafting, flight = stated.setup.speculative not in (None, NONE), flight or engine.scheduler.max_requests
    requests = Requests(stated.mode, prompt, flight, output, version_given=version.given, drafting=drafting)
    found, usual = find(engine.name, engine.version, facts, requests), Setup()
    said = {f.name for f in fields(Setup) if getattr(stated.setup, f.name) != getattr(usual, f.name)} | stated.said
    found = found.without(frozenset(said | ({METHOD} if stated.apart else set())))
    drafts = _drafting(stated, found)
    how = drafts.by(stated.model) if drafts else None
    return found if how and how.method == "mtp" and how.rates else found.without(frozenset([DRAFTS]))


def _drafting(stated: Stated, recipe: Recipe) -> Speculative | None:
    """How tokens are drafted: as stated, else as launches of the version do."""
    said: Any = stated.setup.speculative
    usual = speculative_of(recipe.settings[METHOD]) if METHOD in recipe.settings else None
    return None if said == NONE else said or usual

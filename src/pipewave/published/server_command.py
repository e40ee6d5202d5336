"""A server's own command line (`vllm serve …`, `sglang.launch_server …`, `trtllm-serve …`) as a deployment.

Every option is modelled, noted or refused, as `server_options.yaml` says by engine. Values are the engine's own words:
`--data-parallel-size` is attention data parallelism for a model with experts, `--enable-dp-attention` divides SGLang's
tensor group by `--dp-size`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from pipewave.calls.dtypes import cache_type
from pipewave.calls.fields import Rule
from pipewave.errors import BadInput, MissingField, did_you_mean
from pipewave.files import packaged
from pipewave.models import ModelSpec, load
from pipewave.models.expert_parallel import DEEPEP, Balance
from pipewave.models.quantization_config import ONLINE
from pipewave.published.unstated import Stated
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.speculative import of as speculative_of
from pipewave.software.recorded import images
from pipewave.step import Engine, find_engine

SWITCH = "on"
YES = (SWITCH, "true", "1")  # of a switch that is given a value
MISSPELT = 0.85  # likeness of a word to the one that was meant
FLAGS = Path(__file__).parent.parent / "software" / "flags"
OPTIONS = Path(__file__).with_name("server_options.yaml")
HUMAN = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}  # what vLLM lets numbers end with
ENVIRONMENT = re.compile(r"((?:VLLM|SGLANG|SGL|TRTLLM|TLLM)_\w+)=")
QUOTED = re.compile(
    r"(serve|launch_server|api_server|bench_serving|profile|benchmark)\s+\S"
)  # in one word: `bash -c '…'`
JSON = ("drafts", "eplb_config")  # settings that vLLM takes as an object, or by its entries: --option.entry value
DEEPEP_MODES = {"normal": "deepep_high_throughput", "low_latency": "deepep_low_latency"}
PROGRAMS = {"vllm": "vllm", "sglang": "sglang", "trtllm-serve": "trtllm"}  # start a server of an engine
NEED_SERVE = ("vllm", "sglang")  # where the word `serve` follows


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a command line deploys."""

    engine: str
    spec: ModelSpec  # as it is served
    setup: Setup
    version: str | None = None  # where the line or its image names one
    notes: tuple[str, ...] = ()  # on what was left out

    def stated(self, spec: ModelSpec, gpu: str) -> Stated:
        """The deployment of `spec` on a GPU; what the line leaves out is the engine's default."""
        return Stated(spec, gpu, self.setup, self.engine, self.version, complete=True)


@dataclass(slots=True)
class Words:
    """A command line taken apart: options by our names, words that are none, options not understood."""

    said: dict[str, str] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # options understood, in order


def read(command: str, version: str | None = None, configuration: str | None = None) -> Pasted:
    """The deployment of a command line, as pasted; `configuration` in place of the model that it names. Raises BadInput
    or MissingField, and what `load` raises.
    """
    words = split(command)
    engine, rest, tag = _engine(words)
    table, names = packaged.shared(OPTIONS), named(_table(engine)["fields"])
    known = frozenset[str]() if _table(engine).get("literal") else names.keys() | recorded(engine)
    taken = options([_in_full(word, known) for word in takewhile(lambda one: one not in table["ends"], rest)], names)
    passed = passed_over(engine, "from_command", taken, _table(engine), recorded(engine))
    version = version or tag
    model = configuration or taken.said.get("model") or next(iter(taken.alone), None)
    if model is None:
        raise MissingField(f"from_command: no model in {command[:80]!r}", field="from_command")
    spec, loaded = _loaded(model, taken.said.get("weights"))
    name = f"{engine}:{version}" if version else engine
    allowed = None if any(word.startswith(tuple(table["longer"])) for word in words) else spec.max_length
    taken.said.update([*_in_our_words(engine, taken.said, find_engine(name), allowed)])
    setup = Setup(engine=name, **_parallel(engine, taken.said, spec), **_limits(taken.said))
    environment = [f"{found[1]}: the environment is not read" for word in words if (found := ENVIRONMENT.match(word))]
    notes = (*loaded, *_alone(engine, taken.said, spec), *passed, *environment)
    return Pasted(engine, spec, setup, version, notes)


def _in_our_words(engine: str, said: Mapping[str, str], program: Engine, most: int | None) -> Iterator[tuple[str, str]]:
    """Settings that an engine gives in other words. Raises BadInput for what is not modelled or allowed."""
    for key, known in packaged.shared(OPTIONS)["only"].items():
        if (word := said.get(key, known[0])) not in known:
            raise BadInput(f"{key} = {word!r}: not modelled; known: {', '.join(known)}", field=key)
    if most and (asked := said.get("length", "auto")) not in ("auto", "-1") and _whole(asked, "max-model-len") > most:
        raise BadInput(f"max-model-len = {asked}: vLLM takes at most the model's {most:,}", field="from_command")
    if engine == "sglang" and said.get("tokens") == "-1":  # prompts are not cut, and a step has its limit of them
        yield from (("no_chunks", SWITCH), ("tokens", str(program.scheduler.prompt_tokens)))


def _in_full(word: str, known: Collection[str]) -> str:
    """A word in full whose option is cut short (`--speculative-algo`): argparse takes the only one that begins so."""
    name, equals, value = word.partition("=")
    full = [one for one in known if one.startswith(name)] if name[:2] == "--" and name not in known else []
    return full[0] + equals + value if len(full) == 1 else word


def split(command: str, field: str = "from_command") -> list[str]:
    """Words of a command line, continued lines joined, and of one in quotes there. Raises BadInput for `field`."""
    try:
        words = shlex.split(re.sub(r";(?=\s|$)", " ;", command.replace("\\\n", " ")))
        return [part for word in words for part in (split(word, field) if QUOTED.search(word) else (word,))]
    except ValueError as problem:
        raise BadInput(f"{field}: cannot be read as a command line ({problem})", field=field) from problem


def options(words: Sequence[str], names: Mapping[str, str]) -> Words:
    """Options with their values, `--name value` or `--name=value`; a name without one is a switch."""
    taken, rest = Words(), list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            taken.alone.append(word)
            continue
        name, equals, value = word.partition("=")
        if level := re.fullmatch(r"-O(\d)", word):  # as compilers write it
            name, equals, value = "-O", "=", level[1]
        if not equals and name.replace("_", "-").startswith(tuple(packaged.shared(OPTIONS)["switches"])):
            value = SWITCH
        elif not equals:
            after = rest[0] if rest else "--"
            is_value = after[:1] != "-" or (after[:2] != "--" and after[1:2].isdigit())  # a negative number is one
            value = rest.pop(0) if is_value else SWITCH
        name, entry, inner = name.replace("-O.", "--compilation-config.").partition(".")  # of a JSON option, in vLLM
        key = names.get(name) or names.get(name.replace("_", "-"))
        if key is None or (entry and key not in JSON):
            taken.other.append(name)
        else:
            held = json_object(taken.said.get(key, "{}"), name, "from_command") if entry else {}
            taken.said[key] = json.dumps(held | {inner: value}) if entry else value
            taken.named.append(name)
    return taken


def _table(engine: str) -> Mapping[str, Any]:
    """What each option of an engine does here; of `settings`, the fields that they give."""
    return dict(packaged.shared(OPTIONS)[engine])


def named(fields: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Our name of each option, in both spellings of its words."""
    found = {option: key for key, listed in fields.items() for option in listed}
    return found | {"--" + option[2:].replace("-", "_"): key for option, key in found.items() if option[:2] == "--"}


@cache
def recorded(engine: str, folder: Path = FLAGS) -> frozenset[str]:
    """Options that some recorded version of an engine, or of a client, has."""
    files = (packaged.content(path).decode().splitlines() for path in sorted(folder.glob(f"{engine}-*.txt")))
    return frozenset(line for lines in files for line in lines if line.startswith("-"))


def passed_over(
    whose: str, field: str, taken: Words, table: Mapping[str, Any], recorded: Collection[str]
) -> tuple[str, ...]:
    """Notes on options that change nothing here; `recorded`: options, or patterns of some, that its program has.

    Raises BadInput for one that is refused or misspelt.
    """
    known = (*named(table["fields"]), *recorded)
    quiet, notes = [], []
    for option in dict.fromkeys(taken.other):
        plain = option if table.get("literal") else option.replace("_", "-")
        if why := next((why for one, why in table.get("refused", {}).items() if _matches(plain, (one,))), ""):
            raise BadInput(f"{field}: {option}: {why}", field=field)
        if _matches(plain, table["no_effect"]):
            quiet.append(option)
        elif plain in table.get("files", ()):
            notes.append(f"{option}: its file is not read; say its settings as options")
        elif any(_matches(one, recorded) for one in {option, plain, plain.replace("--no-", "--", 1)}):
            notes.append(f"{option}: not modelled; answered as without it")
        elif near := did_you_mean(plain, known, MISSPELT):
            raise BadInput(f"{field}: {option} is no option that is known of {whose};{near}", field=field)
        else:
            notes.append(f"{option}: no option that is known of {whose}; answered as without it")
    return (*notes, *((f"without effect on times: {', '.join(quiet)}",) if quiet else ()))


def _matches(option: str, patterns: Collection[str]) -> bool:
    return option in patterns or any("*" in pattern and fnmatch(option, pattern) for pattern in patterns)


def _alone(engine: str, said: Mapping[str, str], spec: ModelSpec) -> Iterator[str]:
    """Notes on options that change nothing without another, or without experts."""
    fields = _table(engine)["fields"]
    for key, other in _table(engine).get("needs", {}).items():
        if key in said and other not in said:
            yield f"{fields[key][0]}: without effect, as {fields[other][0]} is not given"
    if "experts" in said and not spec.is_moe:
        yield f"{fields['experts'][0]}: without effect, as {spec.name} has no experts"


def _engine(words: Sequence[str]) -> tuple[str, Sequence[str], str | None]:
    """The engine, the words after its program, and its version where an image names it."""
    tags = dict[str, str]()  # `0.11.0` of `v0.11.0-x86_64`, nothing of `latest` and other names
    for index, word in enumerate(words):
        name, rest = word.rpartition("/")[2], words[index + 1 :]
        serves = rest[:1] == ["serve"]
        if name in PROGRAMS and (serves or name not in NEED_SERVE):
            return PROGRAMS[name], rest[1:] if serves else rest, tags.get(PROGRAMS[name])
        if engine := next((one for module, one in packaged.shared(OPTIONS)["modules"].items() if module in name), ""):
            return engine, rest, tags.get(engine)
        release = re.search(r":v?(\d+\.\d+\.\d+(rc\d+)?)", word)
        tags |= {engine: release[1] for engine, image in images().items() if image.repository in word and release}
    serving = [(name, image.repository) for name, image in images().items() if image.serves]
    if begun := [(name, at + 1) for name, image in serving for at, word in enumerate(words) if image in word]:
        return begun[0][0], words[begun[0][1] :], tags.get(begun[0][0])
    known = "vllm serve, python -m sglang.launch_server, trtllm-serve"
    raise BadInput(f"from_command: no server in {shlex.join(words)[:80]!r}; known: {known}", field="from_command")


def _parallel(engine: str, said: Mapping[str, str], spec: ModelSpec) -> dict[str, Any]:
    """Degrees as the engine means them."""
    tp, pp, dp, ep = (_whole(said.get(name, "1"), name, least=1) for name in ("tp", "pp", "dp", "ep"))
    if _table(engine).get("dp_within_tp"):
        if "dp_attention" not in said:
            return {"tp": tp, "pp": pp, "ep": ep, "replicas": dp}
        if tp % dp:
            raise BadInput(f"dp-size = {dp}: must divide tp-size = {tp}", field="dp")
        return {"tp": tp // dp, "pp": pp, "ep": ep, "dp": dp}
    if _table(engine).get("experts_everywhere"):
        ep = tp * dp if "experts" in said and spec.is_moe else 1
    return {"tp": tp, "pp": pp, "ep": ep, "dp": dp}


def _loaded(model: str, word: str | None) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model as the engine loads it under `--quantization WORD`, and what is to be said of that.

    A quantised checkpoint is what its config says, whatever the word.
    """
    spec, loaded = load(model), load(model, online=word if word in (None, *ONLINE) else next(iter(ONLINE)))
    if loaded == spec:
        return spec, ()
    if word not in ONLINE:
        return spec, (f"--quantization {word}: not modelled for 16-bit weights; answered as without it",)
    return loaded, (f"--quantization {word}: 16-bit weights are quantised while they are loaded",)


def _whole(word: str, name: str, least: int = 0) -> int:
    times = HUMAN.get(word[-1:], 1)
    try:
        value = int(float(word[:-1]) * times) if times > 1 else int(word)
    except (ValueError, OverflowError) as problem:
        raise BadInput(f"{name} = {word[:60]!r}: must be an integer", field=name) from problem
    return int(Rule("int", low=least).check(name, value))


def number(word: str, name: str, field: str | None = None) -> float:
    """A number of a command line, as messages name it. Raises BadInput."""
    try:
        return float(word)
    except ValueError as problem:
        raise BadInput(f"{name} = {word!r}: must be a number", field=field or name) from problem


READERS: dict[str, Callable[[str, str], Any]] = {  # of a word, and the name that messages give it
    "whole": _whole,
    "number": number,
    "cache_type": lambda word, _name: None if word == "auto" else cache_type(word),
    "word": lambda word, _name: None if word == "auto" else word,
    "triton": lambda word, _name: word if word == "triton" else None,
    "given": lambda word, _name: word.lower() in YES,
    "not_given": lambda word, _name: word.lower() not in YES,
    "zero": lambda word, _name: _whole(word, "optimization_level") == 0,
}


def _limits(said: Mapping[str, str]) -> dict[str, Any]:
    """Limits of the scheduler and the cache, how experts are reached and balanced, and what drafts."""
    readers = ((key, *how) for key, how in _table("settings").items() if key in said)
    found = {field: READERS[reader](said[key], field) for key, field, reader in readers}
    if "exchange" in said:  # DeepEP's mode is an option of its own in SGLang
        word = said["exchange"]
        found["exchange"] = DEEPEP_MODES.get(said.get("deepep_mode", ""), DEEPEP) if word in (DEEPEP, SWITCH) else word
    if "eplb" in said:
        given = json_object(said["eplb_config"], "eplb-config", "eplb") if "eplb_config" in said else {}
        copies = given.get("num_redundant_experts", 0) if given else said.get("redundant", 0)
        found["balance"] = Balance(_whole(str(copies), "eplb"))
    drafts = _drafts(said)
    return found | ({"speculative": drafts} if drafts else {})


def json_object(word: str, name: str, field: str) -> dict[str, Any]:
    """The object that an option holds. Raises BadInput for `field`."""
    try:
        return dict(json.loads(word))
    except (ValueError, TypeError, RecursionError) as problem:
        raise BadInput(f"{name}: not a JSON object ({problem})", field=field) from problem


def _drafts(said: Mapping[str, str]) -> Speculative | None:
    """vLLM's JSON, or SGLang's algorithm and steps."""
    if "drafts" in said:
        given = json_object(said["drafts"], "speculative-config", "speculative")
        method = str(given.get("method") or ("draft" if given.get("model") else "ngram"))
        tokens, model = given.get("num_speculative_tokens"), given.get("model")
    elif "algorithm" in said:
        method, model = said["algorithm"], said.get("draft_model")
        tokens = said.get("steps") or said.get("draft_tokens")
    else:
        return None
    known = {"method": method.lower()} | ({"tokens": tokens} if tokens is not None else {})
    if model and known["method"] in ("draft_model", "standalone", "draft"):
        known["model"] = model
    return speculative_of(known)

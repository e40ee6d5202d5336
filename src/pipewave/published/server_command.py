"""A server's own command line (`vllm serve …`, `sglang.launch_server …`, `trtllm-serve …`) as a deployment.

Every option is modelled, noted or refused, as `server_options.yaml` says by engine. Values are the engine's own words:
`--data-parallel-size` is attention data parallelism for a model with experts, `--enable-dp-attention` divides SGLang's
tensor group by `--dp-size`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipewave.calls.dtypes import cache_type
from pipewave.calls.fields import Rule
from pipewave.errors import BadInput, MissingField, did_you_mean
from pipewave.files import packaged
from pipewave.models import ModelSpec, load
from pipewave.models.expert_parallel import Balance
from pipewave.models.quantization_config import ONLINE
from pipewave.published.unstated import Stated
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.speculative import of as speculative_of

SWITCH = "on"
MISSPELT = 0.85  # likeness of a word to the one that was meant
FLAGS = Path(__file__).parent.parent / "software" / "flags"
OPTIONS = Path(__file__).with_name("server_options.yaml")
SAME_SPEED = ("auto", "bfloat16", "bf16", "half", "float16", "fp16")  # 16-bit types, by engines' words
SWITCHES = (
    "--enable-",
    "--disable-",
    "--no-",
    "--trust-remote-code",
    "--async-scheduling",
    "--enforce-eager",
    "--headless",
)
IMAGE = "vllm/vllm-openai"  # starts the server itself; the images of other engines are given a command


class Program(NamedTuple):
    """A program that starts a server: its engine, and whether the word `serve` must follow its name."""

    engine: str
    needs_serve: bool = False


class Degrees(NamedTuple):
    """How an engine means its degrees of parallelism.

    `dp_within_tp`: data parallelism divides the tensor group where attention has it, else it copies the server.
    `experts_everywhere`: an option without a number spreads experts over all GPUs.
    """

    dp_within_tp: bool = False
    experts_everywhere: bool = False


PROGRAMS = {
    "vllm": Program("vllm"),
    "sglang": Program("sglang", needs_serve=True),
    "trtllm-serve": Program("trtllm"),
}
DEGREES = {
    "vllm": Degrees(experts_everywhere=True),
    "sglang": Degrees(dp_within_tp=True),
    "trtllm": Degrees(),
}


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a command line deploys."""

    engine: str
    model: str  # by name
    spec: ModelSpec  # as it is served
    setup: Setup
    version: str | None = None  # where the line or its image names one
    notes: tuple[str, ...] = ()  # on what was left out

    def stated(self, spec: ModelSpec, gpu: str) -> Stated:
        """The deployment of `spec` on a GPU; what the line leaves out is the engine's default."""
        return Stated(spec, gpu, self.setup, self.engine, self.version, complete=True)


@dataclass(slots=True)
class Words:
    """A command line taken apart: options by our names, the first word that is none, options not understood."""

    said: dict[str, str] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


def read(command: str, version: str | None = None) -> Pasted:
    """The deployment of a command line, as pasted. Raises BadInput or MissingField, and what `load` raises."""
    words = split(command)
    engine, rest, tag = _engine(words)
    taken = options(rest, _fields(engine))
    passed_over = _passed_over(engine, taken)
    version = version or tag
    model = taken.said.get("model") or next(iter(taken.alone), None)
    if model is None:
        raise MissingField(f"from_command: no model in {command[:80]!r}", field="from_command")
    spec, loaded = _loaded(model, taken.said.get("weights"))
    name = f"{engine}:{version}" if version else engine
    setup = Setup(engine=name, **_parallel(engine, taken.said, spec), **_limits(taken.said))
    notes = (*loaded, *_alone(engine, taken.said, spec), *passed_over)
    return Pasted(engine, model, spec, setup, version, notes)


def split(command: str) -> list[str]:
    """Words of a command line, continued lines joined."""
    try:
        return shlex.split(command.replace("\\\n", " "))
    except ValueError as problem:
        raise BadInput(f"from_command: cannot be read as a command line ({problem})", field="from_command") from problem


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
        if not equals and name.replace("_", "-").startswith(SWITCHES):
            value = SWITCH
        elif not equals:
            value = rest.pop(0) if rest and not _is_option(rest[0]) else SWITCH
        key = names.get(name) or names.get(name.replace("_", "-"))
        if key is None:
            taken.other.append(name)
        else:
            taken.said[key] = value
    return taken


def _is_option(word: str) -> bool:
    return word.startswith("--") or (word.startswith("-") and not word[1:2].isdigit())


@cache
def _table(engine: str) -> Mapping[str, Any]:
    """What each option of an engine does here."""
    return dict(packaged.yaml(OPTIONS)[engine])


@cache
def _fields(engine: str) -> Mapping[str, str]:
    """Our name of each option of an engine, in both spellings of its words."""
    fields = _table(engine)["fields"]
    named = {option: key for key, listed in fields.items() for option in listed}
    return named | {
        "--" + option[2:].replace("-", "_"): key for option, key in named.items() if option.startswith("--")
    }


@cache
def _recorded(engine: str) -> frozenset[str]:
    """Options that some recorded version of an engine has."""
    files = (packaged.content(path).decode().splitlines() for path in sorted(FLAGS.glob(f"{engine}-*.txt")))
    return frozenset(line for lines in files for line in lines if line.startswith("-"))


def _passed_over(engine: str, taken: Words) -> tuple[str, ...]:
    """Notes on options that change no setting here. Raises BadInput for one that is refused or misspelt."""
    table = _table(engine)
    quiet, notes = [], []
    for option in dict.fromkeys(taken.other):
        plain = option if engine == "trtllm" else option.replace("_", "-")
        known = {option, plain, plain.replace("--no-", "--", 1)} & _recorded(engine)
        if why := table["refused"].get(plain):
            raise BadInput(f"from_command: {option}: {why}", field="from_command")
        if any(fnmatch(plain, pattern) for pattern in table["no_effect"]):
            quiet.append(option)
        elif not known and (near := did_you_mean(option, (*_fields(engine), *_recorded(engine)), MISSPELT)):
            raise BadInput(
                f"from_command: {option} is no option that is known of {engine};{near}", field="from_command"
            )
        else:
            what = "not modelled" if known else f"no option that is known of {engine}"
            notes.append(f"{option}: {what}; answered as without it")
    return (*notes, *((f"without effect on times: {', '.join(quiet)}",) if quiet else ()))


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
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        rest = words[index + 1 :]
        serves = rest[:1] == ["serve"]
        if (program := PROGRAMS.get(name)) and (serves or not program.needs_serve):
            return program.engine, rest[1:] if serves else rest, None
        if name.startswith(("sglang.launch_server", "vllm.entrypoints")):
            return name.partition(".")[0], rest, None
    for index, word in enumerate(words):
        if word.startswith(IMAGE):
            return "vllm", words[index + 1 :], _release(word.partition(":")[2])
    known = "vllm serve, python -m sglang.launch_server, trtllm-serve"
    raise BadInput(f"from_command: no server in {shlex.join(words)[:80]!r}; known: {known}", field="from_command")


def _release(tag: str) -> str | None:
    """`0.11.0` of `v0.11.0-x86_64`; None of `latest` and other names."""
    found = re.match(r"v?(\d+\.\d+\.\d+)", tag)
    return found[1] if found else None


def _parallel(engine: str, said: Mapping[str, str], spec: ModelSpec) -> dict[str, Any]:
    """Degrees as the engine means them."""
    tp, pp, dp, ep = (_whole(said.get(name, "1"), name, least=1) for name in ("tp", "pp", "dp", "ep"))
    means = DEGREES[engine]
    if means.dp_within_tp:
        if "dp_attention" not in said:
            return {"tp": tp, "pp": pp, "ep": ep, "replicas": dp}
        if tp % dp:
            raise BadInput(f"dp-size = {dp}: must divide tp-size = {tp}", field="dp")
        return {"tp": tp // dp, "pp": pp, "ep": ep, "dp": dp}
    if means.experts_everywhere:
        ep = tp * dp if "experts" in said and spec.is_moe else 1
    return {"tp": tp, "pp": pp, "ep": ep, "dp": dp}


def _loaded(model: str, word: str | None) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model as the engine loads it under `--quantization WORD`, and what is to be said of that.

    A quantised checkpoint is what its config says, whatever the word.
    """
    spec = load(model)
    if word is None:
        return spec, ()
    loaded = load(model, online=word if word in ONLINE else next(iter(ONLINE)))
    if loaded == spec:
        return spec, ()
    if word not in ONLINE:
        return spec, (f"--quantization {word}: not modelled for 16-bit weights; answered as without it",)
    return loaded, (f"--quantization {word}: 16-bit weights are quantised while they are loaded",)


def _limits(said: Mapping[str, str]) -> dict[str, Any]:
    """Limits of the scheduler, the cache and what drafts."""
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "requests": ("max_num_seqs", lambda word: _whole(word, "max_num_seqs")),
        "tokens": ("max_num_batched_tokens", lambda word: _whole(word, "max_num_batched_tokens")),
        "memory": ("gpu_memory_utilization", lambda word: _number(word, "gpu_memory_utilization")),
        "kv": ("kv_dtype", lambda word: None if word == "auto" else cache_type(word)),
        "moe": ("moe_backend", lambda word: None if word == "auto" else word),
        "delta": ("delta_backend", lambda word: word if word == "triton" else None),
        "looks": ("recv_interval", lambda word: _whole(word, "recv_interval")),
        "stream": ("stream_interval", lambda word: _whole(word, "stream_interval")),
        "mixed": ("mixes_phases", lambda word: word == SWITCH),
        "prefix": ("prefix_cache", lambda word: word == SWITCH),
        "no_prefix": ("prefix_cache", lambda word: word != SWITCH),
        "eager": ("eager", lambda word: word == SWITCH),
        "level": ("eager", lambda word: _whole(word, "optimization_level") == 0),
        "graphs": ("graph_limit", lambda word: _whole(word, "max_cudagraph_capture_size")),
        "overlap": ("overlaps", lambda word: word == SWITCH),
        "no_overlap": ("overlaps", lambda word: word != SWITCH),
    }
    _check_type(said.get("dtype", "auto"))
    found = {named: reader(said[key]) for key, (named, reader) in readers.items() if key in said}
    drafts = _drafts(said)
    return found | _experts(said) | ({"speculative": drafts} if drafts else {})


def _check_type(word: str) -> None:
    """Raise BadInput for activations in 32 bits."""
    if word not in SAME_SPEED:
        raise BadInput(f"dtype = {word!r}: not modelled; known: {', '.join(SAME_SPEED)}", field="dtype")


def _experts(said: Mapping[str, str]) -> dict[str, Any]:
    """How tokens reach experts, and how experts are balanced."""
    found: dict[str, Any] = {"exchange": _exchange(said)} if "exchange" in said else {}
    found |= {"two_batch": True} if "two_batch" in said else {}
    return found | ({"balance": Balance(_redundant(said))} if "eplb" in said else {})


def _exchange(said: Mapping[str, str]) -> str:
    """DeepEP's mode is an option of its own in SGLang."""
    modes = {"normal": "deepep_high_throughput", "low_latency": "deepep_low_latency"}
    word = said["exchange"]
    return modes.get(said.get("deepep_mode", "auto"), word) if word == "deepep" else word


def _redundant(said: Mapping[str, str]) -> int:
    """Copies of experts: a number, or in vLLM's JSON."""
    if "eplb_config" not in said:
        return _whole(said.get("redundant", "0"), "redundant")
    try:
        return int(dict(json.loads(said["eplb_config"])).get("num_redundant_experts", 0))
    except (ValueError, TypeError, OverflowError) as problem:
        raise BadInput(f"eplb-config: not a JSON object ({problem})", field="eplb") from problem


def _drafts(said: Mapping[str, str]) -> Speculative | None:
    """vLLM's JSON, or SGLang's algorithm and steps."""
    if "drafts" in said:
        try:
            given = dict(json.loads(said["drafts"]))
        except (ValueError, TypeError) as problem:
            raise BadInput(f"speculative-config: not a JSON object ({problem})", field="speculative") from problem
        method = given.get("method") or ("draft" if given.get("model") else "ngram")
        return _speculative(str(method), given.get("num_speculative_tokens"), given.get("model"))
    if "algorithm" in said:
        return _speculative(said["algorithm"], said.get("steps") or said.get("draft_tokens"), said.get("draft_model"))
    return None


def _speculative(method: str, tokens: Any, model: Any) -> Speculative:
    known = {"method": method.lower()} | ({"tokens": tokens} if tokens is not None else {})
    if known["method"] in ("draft_model", "standalone", "draft") and model:
        known["model"] = model
    return speculative_of(known)


def _whole(word: str, name: str, least: int = 0) -> int:
    try:
        value = int(word)
    except ValueError as problem:
        raise BadInput(f"{name} = {word[:60]!r}: must be an integer", field=name) from problem
    return int(Rule("int", low=least).check(name, value))


def _number(word: str, name: str) -> float:
    try:
        return float(word)
    except ValueError as problem:
        raise BadInput(f"{name} = {word!r}: must be a number", field=name) from problem

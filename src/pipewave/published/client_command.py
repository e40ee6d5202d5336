"""A benchmark client's own command line (`vllm bench serve …`, `aiperf profile …`, `guidellm …`) as traffic and limits.

The same words mean different lengths: `--random-range-ratio R` is L × (1 ± R) for `vllm bench serve`, and R × L to L
for SGLang's client and for `benchmark_serving.py`, the fork that InferenceX runs. What each option says, and what a
client does without it, stands in `client_options.yaml`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.fields import Rule
from pipewave.errors import BadInput, MissingField
from pipewave.files import packaged
from pipewave.published.server_command import Words, json_object, named, number, options, passed_over, recorded, split
from pipewave.simulate.report import Limit, limits_of
from pipewave.simulate.shared_tokens import SharedTokens
from pipewave.simulate.traffic import LONGEST, Ints, Traffic, datasets, drawn_from, synthetic, usual_count

OPTIONS = Path(__file__).with_name("client_options.yaml")
FLAGS = OPTIONS.with_name("client_flags")
MADE = ("random", "random-ids", "synthetic", "synthetic_text")
ENTRY = re.compile(r"([\w.]+)=(\[[^\]]*\]|[^,]*)")  # of an option's value, such as `prompt_tokens=9,output_tokens=9`
SIDES, ENDS = ("input", "output"), ("requests", "sessions")  # what lengths are of; what says how many are sent, first
MEMBERS = Rule("int", high=1 << 20)  # groups of prompts, or prompts of one
TAIL = 5  # deviations from their mean that GuideLLM keeps lengths within


class Client(NamedTuple):
    """A client, and what it does without further words."""

    programs: Sequence[str]  # words that start it
    options: str  # whose table its options are in
    usual: Mapping[str, float]  # settings
    untold: Mapping[str, float] = {}  # those where no number of requests is said, either
    meaning: str = "around"  # of the ratio: lengths around the given ones, or below
    each: int = 0  # requests at least for each in flight, where nothing says how many
    redraws: bool = False  # lengths below zero are drawn again, not cut


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What a client asks: requests, limits that count as good, and what was left out."""

    traffic: Traffic
    limits: tuple[Limit, ...]
    notes: tuple[str, ...] = ()


def read(command: str) -> ClientLoad:
    """The traffic of a command line, as pasted. Raises BadInput, and MissingField where it leaves something open."""
    words, tables = split(command, "client"), packaged.shared(OPTIONS)
    program, client, begun = _client(words, [Client(**one) for one in tables["clients"]])
    table, known_sets = tables[client.options], (*MADE, *tables["shared_prefixes"], *datasets())
    taken = options(words[begun:], named(table["fields"]))
    goals = _goals(" ".join([taken.said.pop("goals"), *taken.alone]), tables["limits"]) if "goals" in taken.said else {}
    passed = passed_over(
        program, "client", taken, table, (*table.get("not_modelled", ()), *recorded(client.options, FLAGS))
    )
    said, notes = _settings(taken, table)
    if (word := said.pop("way", "")) not in (ways := table.get("ways", {"": {}})):
        raise BadInput(f"client: {word!r} of {program}: must be one of {', '.join(filter(None, ways))}", field="client")
    if "refused" in (way := ways[word]):
        raise BadInput(f"client: {program}: {way['refused']}", field="client")
    if (dataset := said.pop("dataset", MADE[0])) not in known_sets:
        notes.append(f"dataset {dataset}: its lengths are not known here; those of the options are taken")
    given = {way.get("renames", {}).get(name, name): _number(name, word) for name, word in said.items()}
    untold = {} if given.keys() & set(ENDS) else client.untold
    found = {**client.usual, **untold, **way.get("usual", {}), **tables["shared_prefixes"].get(dataset, {}), **given}
    for name in (*(() if dataset in datasets() else SIDES), *way.get("needs", ())):
        if name not in found:
            raise MissingField(f"client: {program} does not say {table['asks'][name]}", field="client")
    count = _requests(client, given, found)
    if count is None:
        count = usual_count(int(found["concurrency"]) if "concurrency" in found else None)
        notes.append(f"how many requests {program} sends follows from the time it runs: answered over {count:,}")
    return ClientLoad(_traffic(client, found, count, dataset), limits_of(**goals), (*notes, *passed))


def _client(words: Sequence[str], clients: Sequence[Client]) -> tuple[str, Client, int]:
    """The program that a line starts, what it is, and where its options begin. Raises BadInput."""
    text = " ".join(re.sub(r"\s", "_", word.rpartition("/")[2].removesuffix(".py")) for word in words)
    known = {program: client for client in clients for program in client.programs}
    for program, client in known.items():
        if (at := text.find(program)) >= 0:
            return program, client, text[: at + len(program)].count(" ") + 1
    raise BadInput(f"client: no benchmark in {' '.join(words)[:80]!r}; known: {', '.join(known)}", field="client")


def _settings(taken: Words, table: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Settings by the words of options and of their entries, and notes on entries that are not modelled."""
    words, notes = dict(taken.said), list[str]()
    if twice := next((one for one in taken.named if taken.named.count(one) > 1), ""):
        raise BadInput(f"client: {twice} is given more than once: ask for one run at a time", field="client")
    for name, known in table.get("entries", {}).items():
        option, text = table["fields"][name][0], words.get(name, "")
        held = json_object(text, option, "client") if text[:1] == "{" else dict(ENTRY.findall(text))
        words = {key: word for key, word in words.items() if key != name or not held}
        words |= {known[key]: str(value) for key, value in held.items() if known.get(key)}
        notes += (f"{option} {key}: not modelled; answered as without it" for key in held if key not in known)
    for name, one in table.get("only", {}).items():
        if words.pop(name, one) != one:
            raise BadInput(f"client: {name} of a request: only {one} is modelled", field="client")
    return words, notes


def _number(name: str, word: str) -> float:
    """A finite number; the rate alone may be `inf`. Raises BadInput, also for a list of them."""
    if "," in word:
        raise BadInput(f"client: {name} = {word!r}: these are several runs; ask for one at a time", field="client")
    value = number(word, f"client: {name}", "client")
    if math.isfinite(value) or (name == "rate" and value > 0):
        return value
    raise BadInput(f"client: {name} = {word!r}: must be a finite number", field="client")


def _requests(client: Client, given: Mapping[str, float], found: Mapping[str, float]) -> int | None:
    """How many requests are sent: what the first limit of the line lets through. None where time alone tells."""
    if "each" in found:
        return int(MEMBERS.check("groups", found["groups"]) * MEMBERS.check("each", found["each"]))
    ends = [given[name] for name in ENDS if name in given][:1]
    if "seconds" in given and found.get("rate", math.inf) < math.inf:
        ends.append(max(found["rate"] * given["seconds"], 1))
    if not ends and ("seconds" in given or "requests" not in found):
        return None
    return int(min(ends, default=max(found.get("requests", 1), client.each * found.get("concurrency", 1))))


def below(nominal: float, ratio: float) -> tuple[float, float]:
    """(mean, spread) of lengths uniform from ratio × nominal to nominal."""
    if not 0 <= ratio <= 1:
        raise BadInput(f"random_range_ratio = {ratio}: must be from 0 to 1", field="random_range_ratio")
    return min(nominal, 1e9) * (1 + ratio) / 2, (1 - ratio) / (1 + ratio)  # what is longer is refused as too long


def _traffic(client: Client, said: Mapping[str, float], count: int, dataset: str) -> Traffic:
    """The requests; prompts that begin alike in groups have exact lengths."""
    rate, flight, seed = said.get("rate", math.inf), said.get("concurrency"), int(said.get("seed", 0))
    pace: dict[str, Any] = {"concurrency": int(flight) if flight else None, "rate": rate if rate < math.inf else None}
    if dataset in datasets():
        answers = int(said["answer"]) if "answer" in said else None
        return drawn_from(dataset, count, seed=seed, output_len=answers, **pace)
    sizes, ratio = (said["input"], said["output"]), None if "groups" in said else said.get("ratio")
    spread = ratio or 0.0
    if client.meaning == "below" and ratio is not None:
        (mean, spread), (answer, _) = (below(size, ratio) for size in sizes)
        sizes = (mean, answer)
    traffic = synthetic(
        count, input_len=max(round(sizes[0]), 1), output_len=max(round(sizes[1]), 1),
        burstiness=said.get("burstiness", 1.0), spread=min(spread, 0.999), seed=seed, **pace,
    )  # fmt: skip
    if ratio is None:
        prompts, outputs = (_drawn(side, said, count, client.redraws) for side in SIDES)
        traffic = replace(traffic, input_len=prompts, output_len=outputs)
    if (entries := int(said.get("entries", said.get("sessions", count)))) < count and "prefix" not in said:
        return _repeated(traffic, max(entries, 1))
    shared = int(Rule("int", low=0, high=LONGEST).check("random_prefix_len", int(said.get("prefix", 0))))
    return traffic.with_prefix_tokens(shared, MEMBERS.check("groups", said.get("groups", 1))) if shared else traffic


def _repeated(traffic: Traffic, entries: int) -> Traffic:
    """The same where prompts are so many that come in turn: what the engine still holds of one is not computed."""
    turn = np.arange(len(traffic)) % entries
    prompts, answers = traffic.input_len[turn], traffic.output_len[turn]
    paths, ends = tuple((entry,) for entry in turn.tolist()), tuple(prompts[:entries].tolist())
    shared = SharedTokens(paths, tuple(prompts.tolist()), (0,) * entries, ends)
    return replace(traffic, input_len=prompts, output_len=answers, shared=shared)


def _drawn(side: str, said: Mapping[str, float], count: int, redraws: bool) -> Ints:
    """Tokens of prompts or answers: normal where a deviation is given, else even between the bounds that are."""
    mean, rng = said[side], np.random.default_rng([int(said.get("seed", 0)), SIDES.index(side)])
    wide = Rule("float", low=0, high=LONGEST).check(f"{side}_stdev", said.get(f"{side}_stdev", 0.0))
    low = said.get(f"{side}_min", max(mean - TAIL * wide, 1.0))
    high = Rule("float", low=low, high=LONGEST).check(f"{side}_max", said.get(f"{side}_max", mean + TAIL * wide))
    drawn = rng.normal(mean, wide, count) if wide else rng.uniform(low - 0.5, high + 0.5, count)
    while redraws and (out := drawn < 0).any():
        drawn[out] = rng.normal(mean, wide, int(out.sum()))
    return np.maximum(np.rint(np.clip(drawn, low, high)), 1).astype(np.int64)


def _goals(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Limits of `--goodput ttft:500 tpot:30`."""
    pairs = re.findall(r"(\w+):(\S*)", text)
    if other := next((name for name, _ in pairs if name not in names), ""):
        raise BadInput(f"goodput = {other!r}: must name one of {', '.join(names)}", field="goodput")
    return {names[name]: _number("goodput", value) for name, value in pairs}

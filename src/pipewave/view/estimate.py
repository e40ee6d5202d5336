"""An estimate, replayed iterations and one step: times with intervals, where they go, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.view import document as doc
from pipewave.view import svg
from pipewave.view.svg import Part

DECODE = "decode_step_ms"
PHASES = {"prefill_ms": "prompts", DECODE: "decode step"}
TIMES: Mapping[str, str] = doc.LABELS["batch_times"]
ENERGY = {"power_w": ("W of a GPU", "W"), "energy_j_per_output_token": ("J an output token", "J")}
MEMORY = ("weights", "activations", "engine", "kv_used", "kv_left", "drafts", "free")
MEMORY_NAMES: Mapping[str, str] = doc.LABELS["memory"]
MOST_ROWS = 40
SHORTEST_US = 1e-3  # of a part that is shown
PARTS: Mapping[str, str] = doc.LABELS["step_parts"]


def document(answer: Mapping[str, Any]) -> doc.Document:
    """Everything an estimate says. Raises KeyError or TypeError where it is not one."""
    title = f"{answer['model']} on {answer['gpus']} × {answer['gpu']}, {answer['engine']}"
    subtitle = f"Static batch under {answer['engine']}: every request arrives at once."
    return doc.Document(title, subtitle, tuple(_blocks(answer)), doc.confidence_of(answer["basis"], answer))


def replayed(answer: Mapping[str, Any]) -> doc.Document:
    """What recorded iterations would take. Raises KeyError or TypeError where it is no answer of `replay`."""
    blocks = (_facts(answer), *_breakdown(answer["breakdown"]), *doc.notes_and_command(answer))
    sure = doc.confidence_of(answer["basis"], answer)
    return doc.Document(f"Recorded iterations on {answer['gpu']}", "", blocks, sure)


def step(answer: Mapping[str, Any]) -> doc.Document:
    """One engine iteration. Raises KeyError or TypeError where it is no answer of `step`."""
    long = (part for part in answer["parts"] if abs(part["total_us"]) >= SHORTEST_US)
    parts = [part | {"share": doc.percent(part["share"])} for part in long]
    staged = any(part["stage"] for part in parts)
    columns = {name: head for name, head in PARTS.items() if staged or name != "stage"}
    took = f"{doc.number(float(answer['total_us']))} µs", doc.between(answer["low_us"], answer["high_us"], "µs")
    table = doc.table_of("", parts, columns, droppable=("basis", "each µs", "low", "high"))
    kernels_us = sum(part["total_us"] for part in parts if part["basis"]) or 1.0
    basis = {name: sum(part["total_us"] for part in parts if part["basis"] == name) / kernels_us
             for name in dict.fromkeys(part["basis"] for part in parts) if name}  # fmt: skip
    title = "One engine step" + (f": {answer['model']} on {answer['gpu']}" if "model" in answer else "")
    facts = doc.Facts((doc.Fact("one step", *took),))
    return doc.Document(title, "", (facts, table, *doc.notes_and_command(answer)), doc.evidence_of(basis))


def _blocks(answer: Mapping[str, Any]) -> Iterator[doc.Block]:
    yield _facts(answer)
    embeds = answer["tpot_ms"] == 0.0  # no decode step
    breakdown = answer["breakdown"]
    yield from _breakdown({phase: breakdown[phase] for phase in breakdown if not (embeds and phase == DECODE)})
    if "pipes" in answer:
        yield _pipes(answer["pipes"])
    if "memory_gib" in answer:
        yield from _memory(answer["memory_gib"])
    for phase, one in answer.get("timeline", {}).items():
        yield _step(phase, one)
    yield from doc.notes_and_command(answer)


def _facts(answer: Mapping[str, Any]) -> doc.Facts:
    times = [doc.Fact(name, doc.ms(answer[field]), doc.interval(answer, field, "ms"))
             for field, name in TIMES.items() if f"{field}_low" in answer and answer[field]]  # fmt: skip
    rate = answer.get("output_tokens_per_s")
    rates = (doc.Fact("output tokens per second", doc.number(float(rate)), "of the whole deployment"),) if rate else ()
    energy = [doc.Fact(name, doc.number(float(answer[field])), doc.interval(answer, field, unit))
              for field, (name, unit) in ENERGY.items() if field in answer]  # fmt: skip
    return doc.Facts((*times, *rates, *energy, *doc.costs_of(answer)))


def _breakdown(breakdown: Mapping[str, Mapping[str, float]]) -> Iterator[doc.Block]:
    """A bar and a table of time by kernel family and gap; a phase that takes no time is left out."""
    breakdown = {phase: parts for phase, parts in breakdown.items() if sum(parts.values()) > 0}
    total = {name: sum(parts.get(name, 0.0) for parts in breakdown.values()) for parts in breakdown.values()
             for name in parts}  # fmt: skip
    names = [name for name in sorted(total, key=lambda name: -total[name]) if total[name] > 0]
    by_phase = {PHASES.get(phase, doc.words(phase)): parts for phase, parts in breakdown.items()}
    drawing = svg.bars([(phase, _folded(names, parts)) for phase, parts in by_phase.items()], "time by kernel family")
    note = "By kernel family; what the engine adds (gaps) has names of its own."
    yield doc.Chart("Where the time goes", drawing, note)
    yield doc.shares_of("family", names, by_phase)


def _folded(names: Sequence[str], sizes: Mapping[str, float]) -> list[Part]:
    """The first names with a colour each, all others as one."""
    own = svg.COLOURS - 1 if len(names) > svg.COLOURS else svg.COLOURS
    parts = [Part(doc.words(name), sizes.get(name, 0.0), i) for i, name in enumerate(names[:own])]
    rest = sum(sizes.get(name, 0.0) for name in names[own:])
    return [*parts, Part("the rest", rest, own)] if names[own:] else parts


def _pipes(pipes: Mapping[str, Mapping[str, float]]) -> doc.Chart:
    names = list(dict.fromkeys(name for shares in pipes.values() for name in shares))
    drawing = svg.bars([(phase, _folded(names, shares)) for phase, shares in pipes.items()], "time by pipe")
    said = "; ".join(f"{phase}: " + ", ".join(f"{n} {doc.percent(s)}" for n, s in shares.items() if s >= 0.0005)
                     for phase, shares in pipes.items())  # fmt: skip
    note = f"Share of a step by the pipe that bounds each kernel. {said}."
    return doc.Chart("What the kernels wait for", drawing, note)


def _memory(memory: Mapping[str, float]) -> Iterator[doc.Block]:
    sizes = dict(memory) | {"kv_left": memory["kv"] - memory.get("kv_used", 0.0)}
    names = [name for name in MEMORY if name != "drafts" or name in sizes]
    parts = [Part(MEMORY_NAMES.get(name, name), float(sizes.get(name, 0.0)), i) for i, name in enumerate(names)]
    drawing = svg.bars([("GiB", parts)], "memory", whole=float(memory["total"]))
    yield doc.Chart("Memory of the fullest GPU", drawing)
    rows = tuple((part.name, part.size, doc.percent(part.size / memory["total"])) for part in parts)
    note = f"The KV cache holds {doc.number(int(memory['kv_tokens']))} tokens."
    yield doc.Table("", ("part", "GiB", "share"), rows, note)


def _step(phase: str, step: Mapping[str, Any]) -> doc.Table:
    parts = sorted(step["parts"], key=lambda part: -part["duration_us"])[:MOST_ROWS]
    whole = step["total_us"]
    rows = tuple((doc.words(part["name"]), doc.words(part["family"]), part["count"], float(part["each_us"]),
                  float(part["duration_us"]), doc.percent(part["duration_us"] / (whole or 1.0)), part["bound"])
                 for part in parts if part["duration_us"] > 0)  # fmt: skip
    kind = "prompt" if phase == "prefill" else phase
    note = f"{doc.number(step['requests'])} requests, {doc.number(step['tokens'])} tokens, {doc.ms(whole / 1e3)}."
    return doc.Table(f"One {kind} step", ("kernel", "family", "×", "µs each", "µs", "share", "bound by"), rows, note)

"""A trace: calls ranked by the time that could be won back; and two traces side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.traces.entry import shape_text
from pipewave.view import document as doc
from pipewave.view import svg
from pipewave.view.svg import Part

NOTHING = "No call could be predicted: no shape was recorded. Inside CUDA graphs they come from the model: name it."
ASSUMED = "Resting on an assumption or a stand-in, not counted"
LITTLE = "Inside CUDA graphs no shapes are recorded; they come from the model: pass --model."
NO_LAYERS = "no layers: modules, ranges or a model would name them, or two calls of attention in a step"
WAITS = (
    "launch: from the call to the kernel's start; cpu: the host was still launching; host: it ran other code; "
    "input: it waited for data; sync: for the GPU; device: queued work waited."
)
MUCH_IDLE = 0.2  # of a trace: where the GPU waits that long, its kernels are not the first thing to look at
SUMS = {"by_operator": "By operator", "by_layer": "By layer"}
BARS, ROWS, LEFT, GAPS = 15, 60, 20, 5
CHANGES = ("call", "family", "A: ×", "B: ×", "A each", "B each", "A", "B", "B − A", "predicted B − A")


def document(answer: Mapping[str, Any]) -> doc.Document:
    """Everything a trace says. Raises KeyError or TypeError where it is not one."""
    source = str(answer["source"]).rsplit("/", 1)[-1]
    recognised, shaped = (doc.percent(answer[f"{name}_share"]) for name in ("recognized", "shaped"))
    sure = f"{recognised} of the GPU time recognised, {shaped} with shapes"
    subtitle = f"Measured, predicted and reachable time of every kernel call; protocol {answer['protocol']}."
    title, headline = f"{source} on {answer['gpu']}", tuple(map(str, answer.get("headline", ())))
    return doc.Document(title, subtitle, tuple(_blocks(answer)), sure, headline)


def _blocks(answer: Mapping[str, Any]) -> Iterator[doc.Block]:
    calls = answer["calls"]
    yield _facts(answer)
    counted, by = [call for call in calls if call.get("counted", True)], answer.get("by", "call")
    sums = [(title, answer[field]) for field, title in SUMS.items() if answer.get(field)]
    known = bool(answer.get("judged", True))  # enough calls have a shape to say what could be won back
    if counted and known:
        yield _chart(counted)
    if counted:
        yield _table("Calls", counted, answer)
    if len(counted) < len(calls):
        yield _table(ASSUMED, [call for call in calls if not call.get("counted", True)], answer)
    if not calls or not (known or answer.get("headline")):
        yield doc.Notes((NOTHING if not calls else LITTLE,), detail=False)
    if answer.get("idle"):
        yield _idle(answer["idle"], GAPS if "top" in answer else LEFT)
    for title, rows in sums:
        yield _sums(title, rows, detail=by != title.split()[-1])
    if by == "layer" and not answer.get("by_layer"):
        yield doc.Notes((NO_LAYERS,), detail=False)
    for field, title in (("unshaped", "Recognised, shape unknown"), ("unrecognized", "Not recognised")):
        if answer[field]:
            yield _left(title, answer[field], GAPS if "top" in answer else LEFT)
    notes = [*(call["note"] for call in calls if call["note"]), *answer.get("notes", ())]
    yield from doc.notes_and_command({**answer, "notes": notes})


def _facts(answer: Mapping[str, Any]) -> doc.Facts:
    whole, won, idle = answer["gpu_us"] or 1.0, answer["recoverable_us"], answer.get("idle")
    share = idle["idle_us"] / (idle["span_us"] or 1.0) if idle else 0.0
    waits = (doc.ms(idle["idle_us"] / 1e3), f"{doc.percent(share)} from first to last kernel") if idle else ("",)
    known, unknown = (doc.ms(won / 1e3), doc.percent(won / whole)), ("not known", "too few calls have shapes")
    assumed = answer.get("assumed_recoverable_us")
    facts = [
        doc.Fact("GPU time", doc.ms(answer["gpu_us"] / 1e3), "sum of all kernels"),
        doc.Fact("could be won back", *(known if answer.get("judged", True) else unknown)),
        doc.Fact("if what is assumed holds", f"{doc.ms(assumed / 1e3)} more" if assumed else ""),
        doc.Fact("recognised", doc.percent(answer["recognized_share"]), "of GPU time"),
        doc.Fact("predicted within 10 %", doc.percent(answer["close_share"]), "of recognised time"),
    ]
    facts.insert(0 if share >= MUCH_IDLE else 2, doc.Fact("GPU idle", *waits))
    return doc.Facts(tuple(fact for fact in facts if fact.value))


def _chart(calls: Sequence[Mapping[str, Any]]) -> doc.Chart:
    rows = []
    for call in calls[:BARS]:
        lost, whole = float(call["total_recoverable_us"]), float(call["total_measured_us"])
        said = f"{doc.number(lost)} of {doc.number(whole)} µs" if lost else f"{doc.number(whole)} µs"
        parts = [Part("needed", whole - lost, 0), Part("recoverable", lost, 5)]
        rows.append((f"{call['name']} ×{call['count']}", parts, said))
    drawing = svg.ranked_bars(rows, "recoverable time by call")
    drawing += svg.legend([("what a good kernel needs", 0), ("could be won back", 5)])
    return doc.Chart("Largest gains", drawing, "All calls of a kind together, ranked by what a good kernel would save.")


def _table(title: str, calls: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> doc.Table:
    """The first calls; `top` of the answer says how many, 0 all; `by` whether sums stand in their place."""
    most = answer.get("top", ROWS) or len(calls)
    columns = ("call", "shape", "×", "measured", "predicted", "90 %", "ceiling", "floor", "bound by", "recoverable")
    shapes = [shape_text({name: value for name, value in call["call"].items() if value != 0}) for call in calls]
    rows = tuple((call["name"], shape, call["count"], float(call["measured_us"]), float(call["latency_us"]),
                  doc.ends(call["low_us"], call["high_us"]), float(call["ceiling_us"]), float(call["floor_us"]),
                  call["bound"], float(call["total_recoverable_us"]))
                 for call, shape in zip(calls[:most], shapes[:most], strict=True))  # fmt: skip
    more = f"{doc.number(len(calls) - most)} smaller ones are left out; --top 0 shows all." if len(calls) > most else ""
    note = f"µs of one call; recoverable of all of them. {more}".strip()
    droppable, detail = ("90 %", "bound by", "floor"), answer.get("by", "call") != "call"
    return doc.Table(title, columns, rows, note, droppable, detail)


def _idle(idle: Mapping[str, Any], most: int) -> doc.Table:
    """Waits of the GPU by cause, then the longest ones."""
    whole = float(idle["span_us"]) or 1.0
    causes = [(cause, float(us), doc.percent(float(us) / whole), "") for cause, us in idle["causes"].items() if us]
    gaps = [(gap["cause"], float(gap["idle_us"]), doc.percent(float(gap["idle_us"]) / whole), f"before {gap['before']}")
            for gap in idle["gaps"][:most]]  # fmt: skip
    span = f"Of {doc.ms(whole / 1e3)} from the first kernel to the end of the last."
    return doc.Table("Idle time of the GPU", ("cause", "µs", "share", "one wait"), (*causes, *gaps), f"{span} {WAITS}")


def _sums(title: str, rows: Sequence[Mapping[str, Any]], *, detail: bool) -> doc.Table:
    columns = (title.removeprefix("By "), "×", "measured", "predicted", "recoverable")
    body = tuple((row["name"], row["calls"], float(row["measured_us"]), row["predicted_us"],
                  float(row["recoverable_us"])) for row in rows[:ROWS])  # fmt: skip
    more = f" {doc.number(len(rows) - ROWS)} more." if len(rows) > ROWS else ""
    return doc.Table(title, columns, body, f"µs of all calls.{more}", detail=detail)


def _left(title: str, rows: Sequence[Mapping[str, Any]], most: int) -> doc.Table:
    body = tuple((row["name"], row["shape"], row["family"] or "", row["count"], float(row["total_measured_us"]))
                 for row in rows[:most])  # fmt: skip
    more = f"{doc.number(len(rows) - most)} more." if len(rows) > most else ""
    return doc.Table(title, ("kernel", "shape", "family", "×", "µs, all"), body, more, ("family",))


def comparison(answer: Mapping[str, Any]) -> doc.Document:
    """Everything `pipewave trace A B` says. Raises KeyError or TypeError where it is not that."""
    names = [f"{str(answer[side]['source']).rsplit('/', 1)[-1]} on {answer[side]['gpu']}" for side in ("a", "b")]
    unit = "a step" if answer["by_step"] else "of the whole traces"
    known = " and ".join(f"{doc.percent(answer[side]['recognized_share'])} of {side.upper()}'s" for side in ("a", "b"))
    told = f"B takes {100 * answer['slower']:+.1f} %, by wall clock or GPU time {unit}, whichever is more"
    title, sure = f"A: {names[0]}; B: {names[1]}", f"{known} GPU time recognised"
    return doc.Document(title, f"GPU time {unit}.", tuple(_compared(answer)), sure, (told,))


def _compared(answer: Mapping[str, Any]) -> Iterator[doc.Block]:
    changes = answer["changes"]
    most = answer.get("top", ROWS) or len(changes)
    facts = []
    for name, key in (("wall clock", "wall_us"), ("GPU time", "gpu_us")):
        if answer.get(key):
            a, b = map(float, answer[key])
            more = f"{100 * (b / a - 1):+.1f} %" if a else ""
            facts += [doc.Fact(f"A: {name}", doc.ms(a / 1e3)), doc.Fact(f"B: {name}", doc.ms(b / 1e3), more)]
    yield doc.Facts(tuple(facts))
    more = f" {doc.number(len(changes) - most)} smaller ones are left out." if len(changes) > most else ""
    note = f"µs of all calls, ranked by the size of the change.{more}"
    yield doc.Table("Changes", CHANGES, tuple(_change(change) for change in changes[:most]), note,
                ("family", "A: ×", "B: ×", "predicted B − A"))  # fmt: skip


def _change(change: Mapping[str, Any]) -> tuple[Any, ...]:
    expected = (change["predicted_a_us"], change["predicted_b_us"])
    predicted = None if None in expected else float(expected[1]) - float(expected[0])
    times = (float(change[name]) for name in ("a_us", "b_us", "change_us"))
    each = (float(change[f"{side}_us"]) / (change[f"count_{side}"] or 1) for side in ("a", "b"))
    return (change["name"], change["family"], change["count_a"], change["count_b"], *each, *times, predicted)

"""A run's shipped members as weights and card.

The card is what `pipewave.nets.nets` reads: features and categories by name, where the net was trained, interval
multiples per basis from held-out rows, and the software that stands in when a call names none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as parse
from safetensors.numpy import save as to_safetensors

from pipewave.nets.nets import SCHEMA
from pipewave.nets.weights_metadata import BASES, Interval, TrainingRow, kind_of
from pipewave.software.stacks import framework, version
from train.cards import read, write
from train.ceilings import shipped_shifts
from train.evaluate import held_out
from train.intervals import Held, calibrated, informative
from train.record import of_run
from train.rows import Ints, Rows
from train.run import Predictions, Run, load_predictions
from train.splits import UNSEEN, WHOLE, by_name

SHIPPED = "ship"


def export(
    name: str, rows: Rows, run: Path, folder: Path, *, ceiling: Path | None = None, ceiling_rows: Rows | None = None,
    **extra: Any,
) -> Path:  # fmt: skip
    """Write `<name>.safetensors` and `<name>.json`; `extra` goes to the card as it is (sources, figures).

    `ceiling_rows` are those that the ceiling was trained on where they are not `rows`: as of the default software
    (`train.registry.plain`).
    """
    net, low = Run.read(run).of(SHIPPED), Run.read(ceiling).of(SHIPPED) if ceiling else None
    raw = to_safetensors(net.named("net") | (low.named("ceiling") if low else {}))
    card = {"schema": SCHEMA, "name": name, "sha256": hashlib.sha256(raw).hexdigest()}
    card |= {"target": "log(latency / base)", "net": net.spec()}
    card |= {"ceiling": low.spec() | held_to(rows, ceiling, ceiling_rows) if low and ceiling else None}
    card |= {"intervals": intervals(rows, run), "rows": len(by_name(SHIPPED, rows).train), "training": of_run(net.log)}
    return _put(folder / f"{name}.json", raw, card | trained_software(rows) | extra)


def _put(path: Path, raw: bytes, card: Mapping[str, Any]) -> Path:
    """Write a card and the weights beside it; the card's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".safetensors").write_bytes(raw)
    return write(path, card)


def _kept(card: Path, prefix: str) -> dict[str, NDArray[np.float32]]:
    """Tensors of the weights of a card: the net's or the ceiling's."""
    weights = parse(card.with_suffix(".safetensors").read_bytes())
    return {name: tensor for name, tensor in weights.items() if name.startswith(prefix)}


def replace_net(card_path: Path, rows: Rows, run: Path, folder: Path, *, split: str = SHIPPED, **extra: Any) -> Path:
    """Shipped weights with the members of a run in the place of their net; ceiling and intervals as they were.

    A split other than `ship` makes weights that know nothing of what it leaves out, kernels' names included.
    """
    net, card, parts = Run.read(run).of(split), read(card_path), by_name(split, rows)
    raw = to_safetensors(_kept(card_path, "ceiling/") | net.named("net"))
    card |= {"net": net.spec(), "sha256": hashlib.sha256(raw).hexdigest(), "rows": len(parts.train)}
    card |= {"training": of_run(net.log)} | trained_software(rows) | extra
    if split != SHIPPED:
        seen = rows.take(parts.train)
        card |= {"software": ran(seen), "stacks": software(seen)["stacks"]}
        card["default_impl"] = _without(card["default_impl"], rows, parts.score)
    return _put(folder / card_path.name, raw, card)


def _without(default_impl: Mapping[str, str], rows: Rows, left_out: Ints) -> dict[str, str]:
    """The names of implementations without those that only left-out rows tell."""
    keys = [np.char.add(np.char.add(rows.columns["stack"].text(), "|"), rows.columns["capability"].text())]
    keys.append(rows.columns["stack"].text())
    kept = np.isin(np.arange(len(rows)), left_out, invert=True)
    unknown = {str(key) for text in keys for key in set(text[left_out]) - set(text[kept])}
    return {
        key: impl
        for key, impl in default_impl.items()
        if not unknown & {key.split("|")[0], "|".join(key.split("|")[:2])}
    }


def replace_ceiling(card_path: Path, ceiling: Path, ceiling_rows: Rows) -> Path:
    """Give shipped weights another ceiling, the rest as it was; its rows are those of `train.registry.plain`."""
    low, card = Run.read(ceiling).of(SHIPPED), read(card_path)
    raw = to_safetensors(_kept(card_path, "net/") | low.named("ceiling"))
    card["ceiling"] = low.spec() | held_to(ceiling_rows, ceiling, ceiling_rows)
    return _put(card_path, raw, card | {"sha256": hashlib.sha256(raw).hexdigest()})


def replace_unseen(card_path: Path, rows: Rows, predictions: Predictions) -> Path:
    """Give shipped weights the intervals of GPUs never seen from what members without them say, the rest as it was."""
    card = read(card_path)
    familiar = {name: one for name, one in card["intervals"].items() if name.partition("|")[0] not in BASES[1:]}
    measured = {name: Interval(**one) for name, one in familiar.items() if name.partition("|")[0] == BASES[0]}
    found = calibrated(informative(_whole(held_out(rows, predictions))), familiar=measured)
    card["intervals"] = familiar | {name: one.given() for name, one in found.items() if name not in measured}
    return write(card_path, card)


def _whole(parts: Mapping[str, Held]) -> dict[str, Held]:
    """Parts that nothing is known of: not those of which a few rows are."""
    return {name: part for name, part in parts.items() if name.partition(":")[0] in WHOLE}


def held_to(rows: Rows, ceiling: Path, ceiling_rows: Rows | None) -> dict[str, Any]:
    """What makes a low-quantile net a ceiling: its shifts, and whether its features are those of default software."""
    seen = rows if ceiling_rows is None else ceiling_rows
    plain = defaults(ceiling_rows) if ceiling_rows else None
    return {"shifts": shipped_shifts(seen, load_predictions(ceiling)), "plain": plain}


def defaults(rows: Rows) -> dict[str, Any]:
    """The software that stands in for all others in the features of these rows (`train.registry.plain`)."""
    return {name: found for name, found in software(rows).items() if name != "trained"}


def intervals(rows: Rows, run: Path) -> dict[str, dict[str, float]]:
    """What cards carry: intervals of held-out rows, but for the fold that shipped weights are scored on."""
    parts = held_out(rows, load_predictions(run))
    others = {name: part for name, part in _whole(parts).items() if name != UNSEEN}
    found = calibrated(informative(others))
    return {basis: interval.given() for basis, interval in found.items()}


def trained_software(rows: Rows) -> dict[str, Any]:
    """The software of the rows that shipped weights are trained on; held-out rows name kernels too."""
    known = software(rows.take(by_name(SHIPPED, rows).train))
    return known | {
        "default_impl": software(rows)["default_impl"] | known["default_impl"],
        "software": ran(rows.take(by_name(SHIPPED, rows).train)),
    }


def ran(rows: Rows) -> dict[str, Any]:
    """Which software rows ran: protocol, stack, types, GPU, implementations."""
    text = {name: column.text() for name, column in rows.columns.items()}
    kv_dtype = text.get("kv_dtype", text["dtype"])
    columns = (text["protocol"], text["stack"], text["dtype"], kv_dtype, text["gpu"], text["impl"])
    unique = set(zip(*(column.tolist() for column in columns), strict=True))
    return nested(
        [TrainingRow(protocol, stack, kind_of(*kinds), gpu, impl) for protocol, stack, *kinds, gpu, impl in unique]
    )


def nested(rows: Iterable[TrainingRow]) -> dict[str, Any]:
    """Rows as cards hold them: what `from_nested` reads."""
    document: dict[str, Any] = {}
    for row in sorted(set(rows)):
        of_kind = document.setdefault(row.protocol, {}).setdefault(row.stack, {}).setdefault(row.kind, {})
        of_kind.setdefault(row.gpu, []).append(row.impl)
    return document


def software(rows: Rows) -> dict[str, Any]:
    """Where rows exist, the stacks of each protocol, and the default stack and implementations."""
    text = {name: column.text() for name, column in rows.columns.items()}
    stacks: dict[str, tuple[str, ...]] = {}
    default: dict[str, str] = {}
    for protocol in np.unique(text["protocol"]):
        present = Counter(map(str, text["stack"][text["protocol"] == protocol]))
        stacks[str(protocol)] = tuple(sorted(present))
        default[str(protocol)] = _default(present)
    trained = sorted(set(zip(*(text[n].tolist() for n in ("gpu", "capability", "dtype", "protocol")), strict=True)))
    return {
        "trained": [[gpu, int(capability), dtype, protocol] for gpu, capability, dtype, protocol in trained],
        "stacks": stacks,
        "default_stack": default,
        "default_impl": dict(_implementations(text)),
    }


def _default(present: Counter[str]) -> str:
    """The newest vLLM; without one, the stack with most rows."""
    vllm = [stack for stack in present if framework(stack) == "vllm"]
    return max(vllm, key=version) if vllm else present.most_common(1)[0][0]


def _implementations(text: Mapping[str, NDArray[np.str_]]) -> Iterator[tuple[str, str]]:
    """Most frequent implementation per stack, and per stack with capability, dtype or both.

    One of other activations than the type says (`…:mxfp8`) stands in only where there is none that keeps to it.
    """
    for names in (("stack",), ("stack", "dtype"), ("stack", "capability"), ("stack", "capability", "dtype")):
        counts: dict[str, Counter[str]] = {}
        for *key, impl in zip(*(text[name].tolist() for name in (*names, "impl")), strict=True):
            counts.setdefault("|".join(key), Counter())[impl] += 1
        for where, counter in sorted(counts.items()):
            plain = {impl: rows for impl, rows in counter.items() if ":" not in impl}
            yield where, Counter(plain or counter).most_common(1)[0][0]

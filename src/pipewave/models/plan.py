"""Which parts each layer holds: fields that list or count layers become one `Kind` a layer."""

from __future__ import annotations

from dataclasses import replace

from pipewave.errors import BadInput
from pipewave.models.families import Family
from pipewave.models.fields import Fields
from pipewave.models.kind import DENSE, SPARSE, Kind
from pipewave.models.plan_mixing import MIXING
from pipewave.models.plan_own import own
from pipewave.models.plan_routing import sparse


def kinds(fields: Fields, family: Family, count: int) -> list[Kind]:
    """The kind of every layer. Raises BadInput or UnsupportedModel naming the field that cannot be read."""
    stated = (made for rule in MIXING if (made := rule(fields, count)) is not None)
    found = next(stated, [Kind(family.mixers, family.ffns)] * count)
    found = _windows(fields, family, found)
    routed = sparse(fields, count)
    both = family.beside or fields.flag("residual_moe")
    chosen = [kind if kind.ffns is not None else replace(kind, ffns=_ffns(s, both=both))
              for kind, s in zip(found, routed, strict=True)]  # fmt: skip
    return own(fields, [kind if _rope(fields, family, i) else replace(kind, rope=False)
                        for i, kind in enumerate(chosen)])  # fmt: skip


def _ffns(sparse: bool, *, both: bool) -> tuple[str, ...]:
    if both and sparse:
        return (*DENSE, *SPARSE)
    return SPARSE if sparse else DENSE


def layer_count(fields: Fields, high: int) -> int:
    """How many layers a config has; a pattern tells where no field counts them."""
    pattern = fields.get("hybrid_override_pattern") or fields.get("layer_types")
    if isinstance(pattern, (str, list)) and fields.get("num_hidden_layers") is None and pattern:
        return len(pattern)
    return fields.integer("num_hidden_layers", high=high)


def _windows(fields: Fields, family: Family, found: list[Kind]) -> list[Kind]:
    """Give attention its window or its chunk, where a rule above has not said which layers slide."""
    window, chunk = fields.optional("sliding_window"), fields.optional("attention_chunk_size")
    restated = fields.optional("sliding_window_size")
    if restated not in (None, window):
        raise BadInput(f"sliding_window_size = {restated}: must be sliding_window = {window}",
                       field="sliding_window_size")  # fmt: skip
    if any(kind.ratio for kind in found) or (window is None and chunk is None):
        return found
    if window is None:
        return [replace(k, chunk=chunk, full=False) if _chunked(fields, family, i, k) else k
                for i, k in enumerate(found)]  # fmt: skip
    listed = any(not kind.full for kind in found) or fields.get("layer_types") is not None
    slides = [not k.full for k in found] if listed else _sliding(fields, family, len(found))
    return [
        replace(kind, window=kind.window or window, full=False) if slide and "attention" in kind.mixers else kind
        for kind, slide in zip(found, slides, strict=True)
    ]


def _chunked(fields: Fields, family: Family, index: int, kind: Kind) -> bool:
    """Llama 4: layers with RoPE see their own chunk only."""
    listed = fields.get("layer_types") is not None
    return not kind.full if listed else _rope(fields, family, index)


def _sliding(fields: Fields, family: Family, count: int) -> list[bool]:
    """Which layers slide by the convention of the family."""
    enabled, rule = fields.flag("use_sliding_window", True), family.window
    every = fields.get("sliding_window_pattern", fields.get("layer_switch", family.window_pattern or 1))
    every = Fields({"sliding_window_pattern": every}).integer("sliding_window_pattern")
    every = fields.integer("global_attn_every_n_layers", every)
    first = fields.integer("max_window_layers", 0, low=0) if rule == "late" else 0
    if not enabled or rule == "none" or (rule == "late" and "use_sliding_window" not in fields.raw):
        return [False] * count
    if rule == "all" and every > 1:
        rule = "pattern"
    return {
        "all": [True] * count,
        "late": [i >= first for i in range(count)],
        "alternate": [i % 2 == 0 for i in range(count)],
        "pattern": [(i + 1) % every != 0 for i in range(count)],
    }[rule]


def _rope(fields: Fields, family: Family, index: int) -> bool:
    """False on layers without rotary embedding: listed (SmolLM3: 0 = none), or every so many."""
    listed = fields.ints("no_rope_layers")
    every = fields.integer("no_rope_layer_interval", family.rope_from, low=0)
    if listed:
        return bool(listed[index]) if index < len(listed) else True
    return family.rope_from == 1 or every < 2 or (index + 1) % every != 0

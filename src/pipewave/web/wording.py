"""Messages and notes in the words of the page: they come from the library, whose users often sit at a command line."""

from __future__ import annotations

import re
from typing import Any

# What the page calls an option of the commands.
LABELS = {
    "--gpu": "GPU",
    "--model": "Model",
    "--tp": "TP",
    "--pp": "PP",
    "--ep": "EP",
    "--q-lens": "New tokens",
    "--kv-lens": "Cache lengths",
    "--kv-cache-dtype": "KV cache",
    "--engine": "Engine",
    "--protocol": "Protocol",
    "--price": "Own prices",
    "--max-num-seqs": "Requests at once",
    "--max-num-batched-tokens": "Tokens a step",
    "--concurrency": "Concurrency",
    "--request-rate": "Requests a second",
}
PHRASES = (
    (re.compile(r"\bpass (?=--)"), "fill in "),
    (re.compile(r"pass a spec file \(\.yaml or \.json\)"), "open its spec file under “Own files”"),
    (re.compile(r"pass (a|the content of its) config\.json\b.*$"), "open its config.json under “Own files”"),
    (re.compile(r"`pipewave gpus`( lists)?"), "the list of GPUs"),
    (re.compile(r"`pipewave model`( lists)?"), "the list of models"),
    (re.compile(r"ignore it explicitly if it does not"), "take it out of the file if it does not"),
)
OPTION = re.compile(r"--[a-z][a-z-]*")


def page_words(text: str) -> str:
    """The text with the page's labels in place of options and commands; options of other programs stay."""
    for pattern, said in PHRASES:
        text = pattern.sub(said, text)
    return OPTION.sub(lambda found: f"“{LABELS[found[0]]}”" if found[0] in LABELS else found[0], text)


def worded(answer: Any) -> Any:
    """An answer whose notes are in the page's words; everything else is as it was."""
    if isinstance(answer, list):
        return [worded(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    return {name: _notes(value) if name in ("note", "notes") else worded(value) for name, value in answer.items()}


def _notes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [page_words(str(one)) for one in value]
    return page_words(value) if isinstance(value, str) else value

"""Shared by all questions of the page: strict forms, models and GPUs by name, and the command of the same answer.

A page may name models and GPUs that ship with the library, or send the content of a file: what another page or another
user of this machine sends here must not make the server read paths.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipewave.calls.dtypes import cache_type
from pipewave.calls.families import KV_DTYPES
from pipewave.errors import BadInput, UnknownField, UnknownGPU, UnknownModel, meant_or_known
from pipewave.files import packaged
from pipewave.files.json_text import parsed
from pipewave.gpus import GPU, find, userfile
from pipewave.gpus.shipped import stem_of
from pipewave.models import ModelSpec, load, names
from pipewave.models.load import config_name, key_of, suggestion
from pipewave.web.limits import GPU_CHARACTERS

Name = Annotated[str, Field(min_length=1, max_length=200)]
Model = Name | dict[str, Any]
WhatIf = Annotated[dict[Name, float | int | str | None], Field(default_factory=dict)]
# What the page calls an option of the commands, and says in place of phrases that speak of commands.
WORDS = packaged.document(Path(__file__).with_name("words.json"))
PLAN: Mapping[str, Mapping[str, str]] = WORDS["plan"]
LABELS: Mapping[str, str] = WORDS["labels"]
PHRASES = tuple((re.compile(pattern), said) for pattern, said in WORDS["phrases"])
OPTION = re.compile(r"--[a-z][a-z-]*")


class Form(BaseModel):
    """A question: unknown fields are refused with the nearest known name, values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def known_fields(cls, given: Any) -> Any:
        """Raise UnknownField for the first name that is no field."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in given if isinstance(given, dict) else ():
            if name not in known:
                short = str(name)[:80]
                raise UnknownField(f"unknown field {short!r};{meant_or_known(short, known)}", field=short)
        return given

    def given(self) -> dict[str, Any]:
        """What was asked, without what was left at its default."""
        return self.model_dump(by_alias=True, exclude_defaults=True)


class GpuFile(Form):
    """A GPU as the text of a spec file: its name, whose ending says YAML or JSON, and what it holds."""

    file: Name
    text: Annotated[str, Field(min_length=1, max_length=GPU_CHARACTERS)]

    def read(self) -> GPU:
        """The GPU. Raises BadFile and BadInput as for a file on the command line; a new architecture is refused."""
        return userfile.read(self.text, Path(Path(self.file).name), traits=False)


Gpu = Name | GpuFile
OPEN = "file:"  # begins what the page's address calls a file, which it must send along


def gpu_of(gpu: Gpu, what_if: WhatIf) -> GPU:
    """A shipped GPU or the one that a spec file describes, with other numbers where asked.

    Raises UnknownGPU (also for a path), BadFile, UnknownField or BadInput.
    """
    if isinstance(gpu, GpuFile):
        found = gpu.read()
    elif gpu.startswith(OPEN):
        raise UnknownGPU(f"{gpu.removeprefix(OPEN)} is not open in this page: choose the file again", field="gpu")
    elif stem_of(gpu) is None and Path(gpu).suffix.lower() in (".yaml", ".yml", ".json"):
        raise UnknownGPU(f"gpu = {gpu!r}: a name, or the content of a spec file; no paths here", field="gpu")
    else:
        found = find(gpu)
    if "name" in what_if:
        raise UnknownField("unknown GPU field 'name'", field="what_if")
    return found.what_if(**what_if) if what_if else found


def model_of(model: Model) -> ModelSpec:
    """A built-in model (an organisation before its name does not matter), or a config.json: decoded, or as its `text`
    under the name of its `file`.
    """
    if not isinstance(model, str):
        return load(_config(model) if model.keys() == {"file", "text"} else model)
    if model.startswith(OPEN):
        raise UnknownModel(f"{model.removeprefix(OPEN)} is not open in this page: choose the file again", field="model")
    return load(name_of(model))


def name_of(model: str) -> str:
    """The built-in model that is meant. Raises UnknownModel, also for a path."""
    known = {key_of(name): name for name in names()}
    found = known.get(key_of(model)) or known.get(key_of(model.rsplit("/", 1)[-1]))
    if found is None:
        close = suggestion(model) or " see `pipewave model`;"
        raise UnknownModel(f"unknown model {model!r}:{close} or pass the content of its config.json", field="model")
    return found


def _config(given: dict[str, Any]) -> dict[str, Any]:
    """What the text of a config.json says, under the name of its file where it has none of its own."""
    name = str(given["file"])[:200]
    config = parsed(str(given["text"]), name, "model", constants=True)
    return config | {"_name_or_path": config_name(config, Path(name).stem)}


def query_command(view: str, form: Form) -> str:
    """The command that gives a view's whole answer without a server."""
    return shlex.join(["pipewave", "query", view, json.dumps(form.given())])


def cache_dtype(word: str | None) -> str | None:
    """The type of the KV cache; `auto` is the model's own."""
    known = cache_type(word)
    if known not in (None, *KV_DTYPES):
        raise BadInput(f"kv_cache_dtype = {word!r}: must be auto, bf16, fp16 or fp8", field="kv_cache_dtype")
    return known


def line(words: Sequence[str], options: Mapping[str, Any]) -> str:
    """A command of words and of options that are given, quoted for a shell."""
    said = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    texts = {flag: ",".join(map(str, value)) if isinstance(value, list) else str(value) for flag, value in said.items()}
    return shlex.join([*words, *(word for pair in texts.items() for word in pair)])


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
    found = {name: worded(value) for name, value in answer.items()}
    if isinstance(note := answer.get("note"), str):
        found["note"] = page_words(note)
    if isinstance(notes := answer.get("notes"), (list, tuple)):
        found["notes"] = [page_words(str(one)) for one in notes]
    return found

"""Finds a model: a built-in name, a config.json, a directory or a local hub cache with one. Nothing is downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from pipewave.errors import BadFile, BadInput, UnknownModel, did_you_mean
from pipewave.files import json_text, packaged, whole
from pipewave.models.config import parse
from pipewave.models.families import family_of
from pipewave.models.quantization_config import ONLINE, ONLINE_ENGINES
from pipewave.models.spec import ModelSpec

REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
MAX_BYTES = 16 << 20
NAMELESS, NO_NAMES = "your model", {"", "config", "params", "model", "snapshots", "downloads", "tmp"}
# Releases that share the shape of the model they were tuned from, and in FP8 its checkpoint's format.
RELEASE = re.compile(r"-(Instruct|it|Chat|hf|Base|pt|Thinking)(-(\d{4}|v[\d.]+|hf))?(?=$|-FP8$)", re.IGNORECASE)
SAME_WORD = 0.75  # likeness of two spellings of a family's name: lama and llama, not mamba
FOLDER = Path(__file__).parent.parent / "data" / "models"
# `releases`: built-in under a name of their own, with the file of the model whose shape and precision they share;
# `short`: other spellings of a built-in name; `contexts`: longest of releases that are for more than their model's;
# `checkpoints`: what reads as a tuned release and has other weights.
OTHER_NAMES = FOLDER.with_name("model_names.json")
CHECKPOINTS = FOLDER.with_name("checkpoints.yaml")  # quantised ones by built-in model, each with its format
PUBLISHED = "published"  # every quantised form of a model that is listed
ModelSource: TypeAlias = str | Path | Mapping[str, Any] | ModelSpec  # by name, by file, as a decoded config, as read


def cached(name: str) -> Path | None:
    """The config.json of a repository `organisation/name` (or `name` alone) in the local cache, newest revision."""
    if not REPOSITORY.fullmatch(name):
        return None
    # Where the hub's own tools look: HF_HUB_CACHE, else HF_HOME/hub, else the user's cache.
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface"
    folder = Path(os.environ.get("HF_HUB_CACHE") or Path(home).expanduser() / "hub")
    pattern = f"models--{name.replace('/', '--')}" if "/" in name else f"models--*--{name}"
    try:
        return next((path for each in sorted(folder.glob(pattern)) if (path := _config(each))), None)
    except OSError:
        return None


def _config(repository: Path) -> Path | None:
    """The config of the main revision, else of the newest snapshot that has one."""
    main = repository / "refs" / "main"
    named = [repository / "snapshots" / main.read_text("utf-8").strip()] if main.is_file() else []
    others = sorted((repository / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path / "config.json" for path in [*named, *others] if (path / "config.json").is_file()), None)


def load(model: ModelSource, *, ignore: tuple[str, ...] = (), online: str | None = None) -> ModelSpec:
    """A model from its configuration. Nothing is downloaded.

    Args:
        model: built-in name, name of a listed checkpoint, Hugging Face name in the local cache, a `config.json` or a
            folder with one, its parsed content, or a ModelSpec, which is returned as it is.
        ignore: fields of the configuration that are known to change nothing.
        online: what an engine makes of 16-bit weights while it loads them (`fp8`), or another checkpoint holds in their
            place; quantised checkpoints stay as they are.

    Returns:
        The model as layers and their parts; widths in elements.

    Raises:
        UnknownModel: no model of that name.
        UnsupportedModel: a field changes the computation and is not modelled.
        BadFile: the file cannot be read.
        MissingField, BadInput: a field is missing, or cannot be.
    """
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, Mapping):
        return parse(model, str(model.get("_name_or_path") or model.get("model_type")), ignore=ignore, online=online)
    text = str(model)
    path, stem = _path(text), _stem(text)
    spelled = list[str]()
    if path is None and stem is None and (path := cached(text)) is None:  # lists are read only where they are needed
        spelled = [key for each in (text, RELEASE.sub("", text)) if (key := key_of(each)) in _checkpoints()]
    if path is None:
        longest = packaged.shared(OTHER_NAMES)["contexts"].get(text.rpartition("/")[2].removesuffix("-FP8"))
        found = _built_in_file(*_checkpoints()[spelled[0]] if spelled else (stem or _tuned(text), online))
        return replace(found, max_length=longest) if longest else found
    raw, side = read_json(path, constants=True), path.with_name("hf_quant_config.json")
    file = path.parent.resolve().name if path.name == "config.json" else path.stem
    name = text if "snapshots" in path.parts else config_name(raw, file)
    return parse(raw, name, ignore=ignore, hf_quant=read_json(side) if side.is_file() else None, online=online)


def quantised(model: ModelSource, asked: Sequence[str], ignore: tuple[str, ...] = ()) -> dict[str, ModelSpec]:
    """The forms of a model that were asked for, by name: `fp8` (made while loading), a format (`awq`), a repository,
    or `published` for all listed ones. Raises BadInput for a word that names none.
    """
    spec = load(model, ignore=ignore)
    listed: Mapping[str, str] = packaged.shared(CHECKPOINTS).get(spec.name, {})
    out = dict[str, ModelSpec]()
    for word in asked:
        chosen = {word: word} if word in ONLINE else {r: f for r, f in listed.items() if word in (PUBLISHED, r, f)}
        if not chosen and word != PUBLISHED:
            known = ", ".join([*ONLINE, *listed]) if listed else f"{', '.join(ONLINE)} (no checkpoint is listed)"
            raise BadInput(f"quantize = {word!r}: names no form of {spec.name}; known: {known}", field="quantize")
        found = {name: load(model, ignore=ignore, online=form) for name, form in chosen.items()}
        out |= {name: one for name, one in found.items() if one != spec}
    return out


def load_as(model: ModelSource, form: str | None, engine: str | None, ignore: tuple[str, ...] = ()) -> ModelSpec:
    """The one form of a model that is asked for (None: as it is), for an engine (None: one that makes it). BadInput."""
    if form is None:
        return load(model, ignore=ignore)
    check_online(form, (engine or ONLINE_ENGINES[0]).partition(":")[0])
    forms = quantised(model, [form], ignore)
    if len(forms) != 1:
        why = f"names {', '.join(forms)}; give one of them" if forms else "changes nothing; name a model in 16 bits"
        raise BadInput(f"quantize = {form!r}: {why}", field="quantize")
    ((name, found),) = forms.items()
    return replace(found, name=f"{found.name} ({name})" if name in ONLINE else name)


def check_online(form: str, engine: str) -> None:
    """Raise BadInput where an engine does not quantise 16-bit weights while it loads them."""
    if form in ONLINE and engine not in ONLINE_ENGINES:
        raise BadInput(f"{engine} does not quantise weights while it loads them: name a checkpoint", field="quantize")


def names() -> tuple[str, ...]:
    """Names of the built-in models, sorted."""
    return tuple(sorted(set(_catalogue().values())))


def _path(text: str) -> Path | None:
    path = Path(text)
    try:
        if path.is_dir():
            return path / "config.json"
        return path if path.is_file() or path.suffix == ".json" else None
    except (OSError, ValueError):
        return None


def config_name(config: Mapping[str, Any], file: str) -> str:
    """What a model is called: by its config, else by its file or folder, unless these say nothing of it."""
    stated = config.get("_name_or_path")
    return str(stated or (NAMELESS if file.lower() in NO_NAMES else file))


def _tuned(name: str) -> str:
    """The built-in file of a model by the name of a tuned release, unless that is a checkpoint of its own."""
    checkpoint = key_of(name.rsplit("/", 1)[-1]) in map(key_of, packaged.shared(OTHER_NAMES)["checkpoints"])
    stem = None if checkpoint else _stem(RELEASE.sub("", name))
    if stem is None:
        raise UnknownModel(
            f"unknown model {name!r}:{suggestion(name)} pass a config.json, a directory with one, a repository of the "
            f"local hub cache, or a name that `pipewave model` lists",
            field="model",
        )
    return stem


def suggestion(name: str) -> str:
    """A built-in model of the name's family (its first word) that is written alike, else whether that is read."""
    short = name.rsplit("/", 1)[-1]
    family = _family(short)
    written = get_close_matches(family, {_family(each) for each in names()}, n=1, cutoff=SAME_WORD)
    known = [each for each in names() if written and _family(each) == written[0]]
    begun = max((each for each in known if key_of(short).startswith(key_of(each))), key=len, default="")
    read = f" configs of type {family} are read{'' if known else ', none is built in'};" if family_of(family) else ""
    return (f" did you mean {begun}?" if begun else did_you_mean(short, known)) or read


def _family(name: str) -> str:
    found = re.match(r"[a-z]+", name.lower())
    return found.group() if found else ""


def _stem(name: str) -> str | None:
    """The built-in file of a name, with or without an organisation and the publisher's prefix."""
    short = name.rsplit("/", 1)[-1]
    spelled = map(key_of, (name, short, short.removeprefix("Meta-")))
    return next((_catalogue()[key] for key in spelled if key in _catalogue()), None)


@cache
def _built_in_file(stem: str, online: str | None, name: str = "") -> ModelSpec:
    shaped = packaged.shared(OTHER_NAMES)["releases"].get(stem, stem)
    return parse(packaged.document(FOLDER / f"{shaped}.json"), name or stem, online=online)


@cache
def _checkpoints() -> dict[str, tuple[str, str, str]]:
    """Built-in model, format and repository of each quantised checkpoint that is listed, by its spellings: another
    organisation's is another.
    """
    listed = [
        (stem, form, name) for stem, forms in packaged.shared(CHECKPOINTS).items() for name, form in forms.items()
    ]
    return {key_of(spelled): one for one in listed for spelled in (one[2], one[2].rsplit("/", 1)[-1])}


@cache
def _catalogue() -> dict[str, str]:
    """Every spelling that is known, and the built-in name it stands for."""
    stems = [*(path.stem for path in FOLDER.glob("*.json")), *packaged.shared(OTHER_NAMES)["releases"]]
    short = {key_of(name): stem for name, stem in packaged.shared(OTHER_NAMES)["short"].items()}
    return short | {key_of(stem): stem for stem in stems}


def key_of(name: str) -> str:
    """A name without case and punctuation: what spellings of one model share."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def read_json(path: Path, field: str = "model", *, constants: bool = False) -> dict[str, Any]:
    """The JSON object in a file, or BadFile for `field`. `constants`: NaN and Infinity are numbers, as in configs."""
    text = whole.read(path, field, MAX_BYTES)
    if not text.strip():
        raise BadFile(f"{path}: is empty", field=field)
    return json_text.parsed(text, path, field, constants=constants)

"""Registry of the views: the form of each, its answer and where it runs; answers as JSON without a server."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

from pydantic import ValidationError

from pipewave.errors import BadInput
from pipewave.files.json_text import dumps
from pipewave.web.catalogue import GpuQuery, ModelQuery, gpu_answer, model_answer
from pipewave.web.forms import Form
from pipewave.web.kernel import GridQuery, KernelQuery, grid_answer, kernel_answer
from pipewave.web.planning import PlanQuery, plan_answer
from pipewave.web.serving import ServeQuery, serve_answer
from pipewave.web.traffic import TrafficQuery, traffic_answer


class View(NamedTuple):
    """A kind of question."""

    form: type[Form]
    answer: Callable[[Any], dict[str, Any]]
    lane: str = "quick"  # where it waits for others of its kind
    own_process: bool = False  # answered apart from the server, whose other views stay quick


VIEWS = {
    "kernel": View(KernelQuery, kernel_answer, "kernel"),
    "grid": View(GridQuery, grid_answer, "kernel"),
    "serve": View(ServeQuery, serve_answer),
    "traffic": View(TrafficQuery, traffic_answer, "traffic", own_process=True),
    "model": View(ModelQuery, model_answer),
    "gpu": View(GpuQuery, gpu_answer),
    "plan": View(PlanQuery, plan_answer, "plan", own_process=True),
}
_CACHE: dict[bytes, dict[str, Any]] = {}
CACHED = 16  # of the last answers


def cached(work: Callable[[Any], dict[str, Any]], query: Form) -> dict[str, Any]:
    """What `work` answers, worked out once: a report is written of an answer, and a page is opened again."""
    key = sha256(f"{work.__qualname__} {query.model_dump_json()}".encode()).digest()
    if key not in _CACHE:
        while len(_CACHE) >= CACHED:
            del _CACHE[next(iter(_CACHE))]
        _CACHE[key] = work(query)
    return _CACHE[key]


def answer(view: str, question: str) -> str:
    """The JSON answer. Raises BadInput for another view or a question that is not one; and what the library raises."""
    try:
        if view in VIEWS:
            return dumps(VIEWS[view].answer(VIEWS[view].form.model_validate_json(question)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        raise BadInput(f"{field or 'question'}: {first['msg']}", field=field) from error
    raise BadInput(f"view = {view!r}: must be {', '.join(VIEWS)}", field="view")

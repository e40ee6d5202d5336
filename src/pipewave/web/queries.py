"""A view's answer from its question as JSON text, for the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from pipewave.errors import BadInput
from pipewave.files.json_text import dumps
from pipewave.web.catalogue import GpuQuery, ModelQuery, gpu_answer, model_answer
from pipewave.web.forms import Form
from pipewave.web.kernel import GridQuery, KernelQuery, grid_answer, kernel_answer
from pipewave.web.planning import PlanQuery, plan_answer
from pipewave.web.serving import ServeQuery, serve_answer
from pipewave.web.traffic import TrafficQuery, traffic_answer

VIEWS: dict[str, tuple[type[Form], Callable[[Any], dict[str, Any]]]] = {
    "kernel": (KernelQuery, kernel_answer),
    "grid": (GridQuery, grid_answer),
    "serve": (ServeQuery, serve_answer),
    "traffic": (TrafficQuery, traffic_answer),
    "model": (ModelQuery, model_answer),
    "gpu": (GpuQuery, gpu_answer),
    "plan": (PlanQuery, plan_answer),
}


def answer(view: str, question: str) -> str:
    """The JSON answer. Raises BadInput for another view or a question that is not one; and what the library raises."""
    try:
        if view in VIEWS:
            form, work = VIEWS[view]
            return dumps(work(form.model_validate_json(question)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        raise BadInput(f"{field or 'question'}: {first['msg']}", field=field) from error
    raise BadInput(f"view = {view!r}: must be {', '.join(VIEWS)}", field="view")

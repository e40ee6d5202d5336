"""A view's answer from its question as JSON text, for the command line."""

from __future__ import annotations

import json

from pydantic import ValidationError

from pipewave.errors import BadInput
from pipewave.web.kernel import KernelQuery, kernel_answer
from pipewave.web.model import ModelQuery, model_answer
from pipewave.web.planning import PlanQuery, plan_answer
from pipewave.web.serving import ServeQuery, serve_answer


def answer(view: str, question: str) -> str:
    """The JSON answer. Raises BadInput for another view or a question that is not one; and what the library raises."""
    try:
        if view == "kernel":
            return json.dumps(kernel_answer(KernelQuery.model_validate_json(question)))
        if view == "serve":
            return json.dumps(serve_answer(ServeQuery.model_validate_json(question)))
        if view == "model":
            return json.dumps(model_answer(ModelQuery.model_validate_json(question)))
        if view == "plan":
            return json.dumps(plan_answer(PlanQuery.model_validate_json(question)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        raise BadInput(f"{field or 'question'}: {first['msg']}", field=field) from error
    raise BadInput(f"view = {view!r}: must be kernel, serve, plan or model", field="view")

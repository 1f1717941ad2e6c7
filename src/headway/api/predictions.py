"""/v1/predictions: what tasks will take, from earlier runs (K3)."""

from __future__ import annotations

import msgspec
from litestar import Response, post

from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of
from headway.domain.spec import TaskSpec
from headway.errors import InvalidInput
from headway.policy.prediction import Prediction
from headway.wire.views.predictions import PathView, PredictionsView, PredictionView

MOST = 10_000


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """Tasks as they would be submitted; `after` may name others of them."""

    tasks: list[TaskSpec]


@post("/v1/predictions", status_code=200)
async def predict(request: Http) -> Response[bytes]:
    """Nothing is stored. Tasks that never ran are null."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    asked = await body_of(request, Asked)
    if not 0 < len(asked.tasks) <= MOST:
        raise InvalidInput(f"tasks: {len(asked.tasks)} are given", field="tasks", hint=f"1 to {MOST}")
    definitions = [await core.drafts.define(caller.tenant, spec) for spec in asked.tasks]
    forecast = await core.feasibility.forecast(caller.tenant, asked.tasks, definitions)
    path = forecast.path
    tasks = {name: view_of(forecast.tasks.get(name)) for name in forecast.after}
    return answer(PredictionsView(tasks, PathView(path.names, path.seconds, path.low, path.high, path.known)))


def view_of(found: Prediction | None) -> PredictionView | None:
    if found is None:
        return None
    return PredictionView(found.seconds, found.low, found.high, found.runs, found.law.value, found.sure, found.memory)


ROUTES = [predict]

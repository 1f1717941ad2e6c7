"""The error map is total and the OpenAPI document says exactly what the application serves."""

from __future__ import annotations

import re
from types import SimpleNamespace

from headway import errors
from headway.api import openapi, problems
from headway.api.app import ROUTES, openapi_json
from headway.api.render import allocated_view
from headway.domain.resources import Capacity, Resources
from headway.domain.spec import TaskSpec


def every_error(kind: type[errors.HeadwayError] = errors.HeadwayError) -> set[type[errors.HeadwayError]]:
    return {kind}.union(*(every_error(child) for child in kind.__subclasses__() if child.__module__ == "headway.errors"))


def test_every_error_has_a_status():
    assert {kind.code for kind in every_error()} == set(problems.STATUS)


def test_every_route_is_documented_and_every_documented_route_exists():
    served = {
        (method.lower(), re.sub(r":\w+}", "}", path))
        for handler in [*ROUTES, openapi_json]
        for path in handler.paths
        for method in handler.http_methods
        if method in ("GET", "POST", "PUT", "DELETE", "PATCH")
    }
    documented = {(route.method, route.path) for route in openapi.TABLE}
    assert served == documented


def test_the_document_is_openapi_3_1_and_knows_every_field_of_a_task():
    document = openapi.document()
    assert document["openapi"] == "3.1.0"
    fields = document["components"]["schemas"]["TaskSpec"]["properties"]
    assert set(fields) == set(TaskSpec.__struct_fields__)


def test_what_is_handed_out_ahead_of_a_nodes_capacity_is_not_taken() -> None:
    definitions = SimpleNamespace(shapes={7: Resources(cpus_milli=500, memory=2**28)})
    capacity = Capacity(cpus_milli=2000, memory=2**31, disk=0)
    ahead = allocated_view({7: 41}, definitions, capacity)  # type: ignore[arg-type]
    assert (ahead.cpus, ahead.memory) == (2.0, 2**31)
    assert allocated_view({7: 2}, definitions, capacity).cpus == 1.0  # type: ignore[arg-type]

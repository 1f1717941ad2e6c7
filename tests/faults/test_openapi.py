"""schemathesis drives the server from its own OpenAPI document: no answer is a 5xx, and every answer is a documented one."""

from __future__ import annotations

import os

import hypothesis
import pytest
import pytest_asyncio
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from headway.api.openapi import document
from tests.support.cluster import TOKEN, cluster

EXAMPLES = int(os.environ.get("HEADWAY_FAULT_EXAMPLES", "15"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAMS = ["/v1/events"]  # answered for as long as the caller listens

schema = schemathesis.openapi.from_dict(document()).exclude(path=STREAMS)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def url(tmp_path_factory):
    async with cluster(tmp_path_factory.mktemp("openapi"), agents=0) as made:
        yield made.servers[0].url


@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_every_answer_is_a_documented_one(url, case):
    for name in ("wait", "follow"):  # an hour is a fine answer to `wait=1h`, but not for a test
        case.query.pop(name, None)
    if isinstance(case.body, dict) and case.path in ("/v1/tasks/wait", "/v1/nodes/{node}/exchange"):
        case.body = {key: value for key, value in case.body.items() if key not in ("timeout", "wait_s")} | (
            {"timeout": 0} if case.path == "/v1/tasks/wait" else {}
        )
    response = case.call(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=120)
    case.validate_response(response, checks=CHECKS)


@pytest.mark.parametrize("path", STREAMS)
def test_streams_are_in_the_document(path):
    assert path in document()["paths"]

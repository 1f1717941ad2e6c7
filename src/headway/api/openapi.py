"""The OpenAPI 3.1 document, written as one table over the same structs the routes decode and answer with.

A test compares it with the routes of the application, and schemathesis drives the server with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from headway.api.checkpoints import Announced
from headway.api.content import Claim, ClaimView, NewSecret, Pin, PinView, SecretView, Uploaded
from headway.api.dead import Which
from headway.api.predictions import Asked
from headway.api.queues import NewQueue, QueueChange
from headway.api.schedules import Range
from headway.api.steering import SignalName
from headway.api.tasks import Edit, WaitFor
from headway.api.tenants import NewKey, NewTenant
from headway.api.trees import TreeSpec
from headway.api.webhooks import NewWebhook, Replay, WebhookChange
from headway.domain.schedule import Scheduled
from headway.domain.spec import ResourcesSpec, TaskSpec
from headway.domain.tenant import SubscriptionSpec
from headway.version import VERSION
from headway.wire.exchange import Exchange, Orders, Register, Registered
from headway.wire.views.answers import Changed, Problem
from headway.wire.views.events import DeliveryView, WebhookView
from headway.wire.views.explanations import Explanation
from headway.wire.views.fleet import NodeView, PeakView, QueueView, Stats
from headway.wire.views.predictions import PredictionsView
from headway.wire.views.schedules import AppliedView, Backfilled, FiringView, SchedulePage, ScheduleView
from headway.wire.views.tasks import Accepted, AcceptedMany, AttemptView, DeadGroup, Page, ResourcesView, Saved, TaskView, Waited
from headway.wire.views.tenants import (
    AuditPage,
    KeyPage,
    KeyView,
    LimitsView,
    NewKeyView,
    RemovedTenantView,
    TenantPage,
    TenantView,
)
from headway.wire.views.trees import CriticalPath, EdgePage, LevelPage, NeighbourView, TreePage, TreeView


class OverInputs(msgspec.Struct, forbid_unknown_fields=True):
    """One task for each input."""

    task: TaskSpec
    inputs: list[Any]


Parameter = tuple[str, dict[str, Any], str]
_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "string", "enum": ["0", "1", "true", "false"]}
_ID: dict[str, Any] = {"type": "string", "pattern": "^[0-9]{1,19}$"}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 100}
_DIGEST: dict[str, Any] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_DURATION: dict[str, Any] = {"type": "string", "examples": ["30", "1m"]}
_HOW_MANY: tuple[str, dict[str, Any], str] = ("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "how many")
_STEPS: tuple[str, dict[str, Any], str] = ("steps", {"type": "integer", "minimum": 1, "maximum": 1000}, "how far to go, 1 are its own")
_LIMIT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 1000}
_FILTERS: tuple[Parameter, ...] = (
    ("state", _TEXT, "one or more states, separated by commas"),
    ("name", _TEXT, "the task's name; * stands for anything"),
    ("label", _TEXT, "key=value; may be given several times"),
    ("node", _TEXT, "name or number of a node"),
    ("q", _TEXT, "text in name, command, labels or error"),
    ("since", _TEXT, 'submitted after: ISO 8601, Unix seconds, or "1h" for an hour ago'),
    ("until", _TEXT, "submitted before"),
    ("tree", _ID, "tasks of this tree"),
    ("category", {"type": "string", "enum": ["urgent", "delayable", "periodic"]}, ""),
    ("limit", _LIMIT, "page size, 50 by default"),
    ("cursor", _ID, "`next` of the page before"),
)

_CONFIRM: tuple[Parameter, ...] = (("wait", _DURATION, "how long to wait for the node's answer, 10 s by default"),)


_TENANT: Parameter = ("tenant", _TEXT, "an administrator may name one; else the operator's tiers, or the caller's own")


@dataclass(frozen=True)
class Route:
    """One operation."""

    method: str
    path: str
    summary: str
    answer: Any = None
    status: int = 200
    body: Any = None
    parameters: tuple[Parameter, ...] = ()
    media: str = "application/json"
    public: bool = False
    tag: str = "tasks"


TABLE = (
    Route("post", "/v1/tasks", "Submit one task, a list, or one task over many inputs", (Accepted, AcceptedMany), 201,
          (TaskSpec, list[TaskSpec], OverInputs)),
    Route("get", "/v1/tasks", "List tasks, newest first", Page, parameters=_FILTERS),
    Route("post", "/v1/tasks/wait", "Wait until at least one of these tasks is final", Waited, body=WaitFor),
    Route("get", "/v1/tasks/{task_id}", "One task with input and result", TaskView,
          parameters=(("wait", _DURATION, "hold the answer until the task is final, so long at most"),)),
    Route("get", "/v1/tasks/{task_id}/attempts", "Every attempt of a task", list[AttemptView]),
    Route("get", "/v1/tasks/{task_id}/logs", "Output of a task", None, media="application/x-ndjson", parameters=(
        ("follow", _FLAG, "stream until the task ends"), ("raw", _FLAG, "the bytes"),
        ("whole", _FLAG, "all bytes of an attempt, from the object store"),
        ("attempt", {"type": "integer", "minimum": 0, "maximum": 99_999_999}, "of one attempt only"),
        ("after", _TEXT, "only what comes behind this entry: its attempt, `-`, its sequence"),
        ("stream", {"type": "string", "enum": ["stdout", "stderr"]}, "one stream only"))),
    Route("post", "/v1/tasks/{task_id}/cancel", "Cancel a task", TaskView),
    Route("post", "/v1/tasks/{task_id}/pause", "Pause a task: keep it from starting, or freeze it", TaskView, parameters=_CONFIRM),
    Route("post", "/v1/tasks/{task_id}/resume", "Let a paused task go on", TaskView, parameters=_CONFIRM),
    Route("post", "/v1/tasks/{task_id}/signal", "Send a signal to the program of a running task", TaskView, body=SignalName,
          parameters=_CONFIRM),
    Route("post", "/v1/tasks/{task_id}/retry", "Send a dead letter again, changed if asked", TaskView, body=Edit),
    Route("put", "/v1/tasks/{task_id}/checkpoint", "A running task saves a value: the body as it is", Saved),
    Route("get", "/v1/tasks/{task_id}/checkpoint", "The value that a task saved last", None, media="application/octet-stream"),
    Route("post", "/v1/trees", "Submit a tree", AcceptedMany, 201, TreeSpec, tag="trees"),
    Route("post", "/v1/trees/stream", "Submit a tree of any size, one task a line (NDJSON)", AcceptedMany, 201, tag="trees", parameters=(
        ("name", _TEXT, "the tree's name"), ("levels", {"type": "string", "enum": ["eager", "strict"]}, "whether levels are barriers"))),
    Route("get", "/v1/trees", "Trees, newest first", TreePage, tag="trees", parameters=(
        ("name", _TEXT, "of this name only"), _HOW_MANY,
        ("cursor", _TEXT, "`next` of the page before"))),
    Route("get", "/v1/trees/{tree_id}", "A tree with its levels and tasks", TreeView, tag="trees",
          parameters=(("wait", _DURATION, "hold until something changed"), ("seen", _TEXT, "the ETag of the answer before"))),
    Route("get", "/v1/trees/{tree_id}/levels", "The counters of a tree's levels", LevelPage, tag="trees", parameters=(
        ("from", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "the lowest level to show"), _HOW_MANY)),
    Route("get", "/v1/trees/{tree_id}/critical-path", "The chain of tasks that decides when the tree ends", CriticalPath, tag="trees"),
    Route("get", "/v1/trees/{tree_id}/edges", "The edges of a tree", EdgePage, tag="trees",
          parameters=(_HOW_MANY, ("cursor", _TEXT, "`next` of the page before"))),
    Route("get", "/v1/tasks/{task_id}/upstream", "What a task waits for", list[NeighbourView], parameters=(_STEPS, _HOW_MANY)),
    Route("get", "/v1/tasks/{task_id}/downstream", "What waits for a task", list[NeighbourView], parameters=(_STEPS, _HOW_MANY)),
    Route("post", "/v1/trees/{tree_id}/cancel", "Cancel all of a tree", TreeView, tag="trees"),
    Route("post", "/v1/trees/{tree_id}/retry", "Run what failed again, and what was skipped behind it", TreeView, tag="trees"),
    Route("get", "/v1/schedules", "Schedules", SchedulePage, tag="schedules",
          parameters=(("limit", _LIMIT, "page size, 100 by default"), ("cursor", _NUMBER, "`next` of the page before"),
                      ("next", _COUNT, "how many firings ahead to show, 1 by default"))),
    Route("post", "/v1/schedules", "Apply one schedule or a list, all or none", list[AppliedView], body=(Scheduled, list[Scheduled]),
          tag="schedules"),
    Route("put", "/v1/schedules/{name}", "Apply a schedule; the same again changes nothing", AppliedView, body=Scheduled, tag="schedules"),
    Route("get", "/v1/schedules/{name}", "One schedule with firings ahead and past", ScheduleView, tag="schedules",
          parameters=(("next", _COUNT, "firings ahead, 5 by default"), ("past", _COUNT, "past firings, 10 by default"))),
    Route("delete", "/v1/schedules/{name}", "Delete a schedule; runs under way go on", Changed, tag="schedules"),
    Route("post", "/v1/schedules/{name}/pause", "Fire no more until it is resumed", ScheduleView, tag="schedules"),
    Route("post", "/v1/schedules/{name}/resume", "Go on from now", ScheduleView, tag="schedules"),
    Route("post", "/v1/schedules/{name}/trigger", "Run it now", FiringView, 201, tag="schedules"),
    Route("post", "/v1/schedules/{name}/backfill", "Make up for moments that did not run", Backfilled, body=Range, tag="schedules"),
    Route("post", "/v1/schedules/{name}/stop-backfill", "Give up what still waits of a backfill", Backfilled, tag="schedules"),
    Route("post", "/v1/predictions", "What tasks are expected to take, from earlier runs", PredictionsView, body=Asked, tag="trees"),
    Route("get", "/v1/nodes", "All nodes", list[NodeView], tag="nodes"),
    Route("post", "/v1/nodes", "An agent announces its machine", Registered, 201, Register, tag="nodes"),
    Route("get", "/v1/nodes/{name}", "One node, by name or number", NodeView, tag="nodes"),
    Route("post", "/v1/nodes/{node}/exchange", "The one call of an agent: reports up, orders down", Orders, body=Exchange, tag="nodes"),
    Route("post", "/v1/nodes/{name}/drain", "Give a node nothing new", NodeView, tag="nodes"),
    Route("post", "/v1/nodes/{name}/undrain", "Give a node tasks again", NodeView, tag="nodes"),
    Route("delete", "/v1/nodes/{name}", "Forget a node that is lost or gone", Changed, tag="nodes"),
    Route("get", "/v1/dead-letters", "Dead letters, or with group=1 grouped by error", (Page, list[DeadGroup]), tag="dead letters",
          parameters=(("group", _FLAG, "grouped by error"), *_FILTERS)),
    Route("post", "/v1/dead-letters/retry", "Send dead letters again", Changed, body=Which, tag="dead letters"),
    Route("post", "/v1/dead-letters/purge", "Purge dead letters", Changed, body=Which, tag="dead letters"),
    Route("get", "/v1/events", "The live stream of events (SSE)", None, media="text/event-stream", tag="seeing",
          parameters=(("after", _TEXT, "resume after this event"), ("since", _DURATION, "begin so long ago"),
                      ("kind", _TEXT, "only these kinds, separated by commas"), ("follow", _FLAG, "0: end when all was sent"))),
    Route("get", "/v1/webhooks", "Endpoints that are told of events", list[WebhookView], tag="webhooks"),
    Route("post", "/v1/webhooks", "Add an endpoint; its secret is shown once", WebhookView, 201, NewWebhook, tag="webhooks"),
    Route("get", "/v1/webhooks/{name}", "One endpoint", WebhookView, tag="webhooks"),
    Route("patch", "/v1/webhooks/{name}", "Change an endpoint", WebhookView, body=WebhookChange, tag="webhooks"),
    Route("delete", "/v1/webhooks/{name}", "Remove an endpoint", Changed, tag="webhooks"),
    Route("post", "/v1/webhooks/{name}/rotate", "Give it a new secret, shown once", WebhookView, tag="webhooks"),
    Route("post", "/v1/webhooks/{name}/test", "Send it a message that says nothing", Changed, 202, tag="webhooks"),
    Route("post", "/v1/webhooks/{name}/replay", "Send messages again", Changed, body=Replay, tag="webhooks"),
    Route("get", "/v1/webhooks/{name}/deliveries", "Its messages, newest first", list[DeliveryView], tag="webhooks",
          parameters=(("state", {"type": "string", "enum": ["due", "delivered", "dead"]}, ""), ("before", _ID, "page on"))),
    Route("get", "/v1/tasks/{task_id}/explain", "Why it does not run, and when it will", Explanation),
    Route("patch", "/v1/tasks/{task_id}", "Change a waiting task in place; any field but after and idempotency_key", TaskView,
          body=dict[str, Any]),
    Route("get", "/v1/queues", "Depth, age and rules of every queue", list[QueueView], tag="queues"),
    Route("post", "/v1/queues", "Add a queue (admin)", QueueView, 201, NewQueue, tag="queues"),
    Route("get", "/v1/queues/{name}", "One queue", QueueView, tag="queues"),
    Route("patch", "/v1/queues/{name}", "Change when a queue runs (admin)", QueueView, body=QueueChange, tag="queues"),
    Route("delete", "/v1/queues/{name}", "Remove a queue no task has named (admin)", Changed, tag="queues"),
    Route("post", "/v1/queues/{name}/pause", "Hand out nothing of a queue (admin)", QueueView, tag="queues"),
    Route("post", "/v1/queues/{name}/resume", "Hand out a paused queue's tasks again (admin)", QueueView, tag="queues"),
    Route("get", "/v1/peaks", "What was put off at peak, and what that saved (admin)", list[PeakView], tag="queues"),
    Route("get", "/v1/stats", "Numbers of now", Stats, tag="seeing"),
    Route("post", "/v1/nodes/{node}/checkpoints/{task_id}", "An agent saves a packed folder, or says that it is damaged", Saved,
          body=Announced, tag="nodes"),
    Route("put", "/v1/nodes/{node}/checkpoints/{task_id}/{digest}/{number}", "One chunk of a packed folder: the body as it is", Saved,
          parameters=(("attempt", _NUMBER, "that saves it"), ("size", _NUMBER, "of the whole, in bytes")), tag="nodes"),
    Route("get", "/v1/nodes/{node}/checkpoints/{task_id}/{digest}/{number}", "One chunk of a packed folder", None,
          media="application/octet-stream", parameters=(("attempt", _NUMBER, "that needs it"),), tag="nodes"),
    Route("post", "/v1/uploads", "Keep a file for tasks of this tenant", Uploaded, 201, tag="content",
          parameters=(("name", _TEXT, "its file name: the suffix says what runs it"),)),
    Route("get", "/v1/nodes/definitions/{definition}/uploads/{digest}", "For agents: a file that a definition names", None,
          media="application/octet-stream", tag="content"),
    Route("post", "/v1/nodes/definitions/{definition}/pins", "For agents: what a URL was when it was first fetched", Pin, body=Pin,
          tag="content"),
    Route("get", "/v1/pins", "URLs and what they were when they were first fetched", list[PinView], tag="content"),
    Route("delete", "/v1/pins", "Forget what a URL was", dict[str, str], tag="content", parameters=(("url", _TEXT, "which"),)),
    Route("get", "/v1/secrets", "Names of secrets", list[SecretView], tag="content"),
    Route("put", "/v1/secrets/{name}", "Set a secret", SecretView, body=NewSecret, tag="content"),
    Route("delete", "/v1/secrets/{name}", "Remove a secret", dict[str, str], tag="content"),
    Route("post", "/v1/tasks/{task_id}/once", "From inside a task: an effect that happens once", ClaimView, body=Claim),
    Route("get", "/v1/tiers", "Named bundles of resources", dict[str, ResourcesView], tag="access", parameters=(_TENANT,)),
    Route("put", "/v1/tiers/{tier}", "Define a tier: the operator's, or a tenant's own", ResourcesView, body=ResourcesSpec, tag="access",
          parameters=(_TENANT,)),
    Route("delete", "/v1/tiers/{tier}", "Take a tier away", dict[str, ResourcesView], tag="access", parameters=(_TENANT,)),
    Route("get", "/v1/limits", "What the caller's tenant may use, uses, and has left", LimitsView, tag="access"),
    Route("get", "/v1/whoami", "Whose token this is", dict[str, str], tag="access"),
    Route("get", "/v1/tenants", "Tenants by name (admin)", TenantPage, tag="access",
          parameters=(("limit", _LIMIT, "page size, 100 by default"), ("cursor", _TEXT, "`next` of the page before"))),
    Route("post", "/v1/tenants", "Add a tenant (admin)", TenantView, 201, NewTenant, tag="access"),
    Route("get", "/v1/tenants/{tenant}", "One tenant; a tenant sees itself", TenantView, tag="access"),
    Route("patch", "/v1/tenants/{tenant}", "Change a subscription (admin)", TenantView, body=SubscriptionSpec, tag="access"),
    Route("delete", "/v1/tenants/{tenant}", "Remove a tenant for good (admin)", RemovedTenantView, tag="access",
          parameters=(("cancel", _FLAG, "cancel what has not ended; without it such a tenant is not removed"),)),
    Route("get", "/v1/tenants/{tenant}/limits", "What a tenant may use, uses, and has left", LimitsView, tag="access"),
    Route("get", "/v1/keys", "Keys, without the tokens themselves", KeyPage, tag="access",
          parameters=(("limit", _LIMIT, "page size, 100 by default"), ("cursor", _NUMBER, "`next` of the page before"))),
    Route("post", "/v1/keys", "Make a key; its token is shown once (admin)", NewKeyView, 201, NewKey, tag="access"),
    Route("post", "/v1/keys/{key}/revoke", "Take a key away", KeyView, tag="access"),
    Route("get", "/v1/audit", "Who did what, the newest first", AuditPage, tag="access", parameters=(
        ("actor", _TEXT, "name#number of a key; * stands for anything"), ("action", _TEXT, "such as tasks.cancel or tenants.*"),
        ("target", _TEXT, "what it was done to"), ("since", _TEXT, 'ISO 8601, Unix seconds, or "1h" for an hour ago'),
        ("limit", _LIMIT, "page size, 50 by default"), ("cursor", _NUMBER, "`next` of the page before"))),
    Route("get", "/metrics", "Prometheus metrics", None, media="text/plain", tag="seeing"),
    Route("get", "/livez", "The process lives", dict[str, str], public=True, tag="seeing"),
    Route("get", "/readyz", "The server can admit tasks", dict[str, str], public=True, tag="seeing"),
    Route("get", "/openapi.json", "This document", None, public=True, tag="seeing"),
)  # fmt: skip


@cache
def document_bytes() -> bytes:
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    types = [kind for route in TABLE for side in (route.answer, route.body) for kind in _kinds(side)]
    found, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    schemas = dict(zip(map(str, types), found, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for route in TABLE:
        paths.setdefault(route.path, {})[route.method] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headway",
            "version": VERSION,
            "summary": "A distributed task scheduler",
            "license": {"name": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _kinds(side: Any) -> tuple[Any, ...]:
    """The types one side of a route may have."""
    return side if isinstance(side, tuple) else () if side is None else (side,)


def _schema(side: Any, schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found = [schemas[str(kind)] for kind in _kinds(side)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _operation(route: Route, schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": route.summary, "content": {route.media: {}}}
    if route.answer is not None:
        good["content"] = {route.media: {"schema": _schema(route.answer, schemas)}}
    answers: dict[str, Any] = {str(route.status): good}
    if route.path in ("/v1/tasks", "/v1/trees") and route.method == "post":
        answers["200"] = {**good, "description": "The idempotency key gave the first one back"}
    if route.parameters is _CONFIRM:
        answers["202"] = {**good, "description": "The node has not answered yet; it is told until it does"}
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status, words in _FAILURES.items():
        if not (route.public and status in ("401", "403")):
            answers[status] = {"description": words, "content": problem}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method}_{re.sub(r'[^a-z0-9]+', '_', route.path.lower()).strip('_')}",
        "tags": [route.tag],
        "parameters": [*_path_parameters(route.path), *(_query(parameter) for parameter in route.parameters)],
        "responses": answers,
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _schema(route.body, schemas)}}}
    if route.public:
        operation["security"] = []
    return operation


_FAILURES = {
    "400": "The request is not valid; `field` and `hint` say where and what was expected",
    "401": "No token, or an unknown one",
    "403": "The token's role does not allow this",
    "404": "Not found, or not yours",
    "409": "The current state does not allow this",
    "413": "Too large",
    "422": "No node could ever run this",
    "426": "Versions do not fit together",
    "429": "Limit exceeded; Retry-After says when",
    "503": "Not available right now; Retry-After says when",
}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    kinds = {"key": _NUMBER, "task_id": _ID, "tree_id": _ID, "node": _NUMBER, "definition": _NUMBER, "digest": _DIGEST}
    return [
        {"name": name, "in": "path", "required": True, "schema": kinds.get(name, {**_TEXT, "minLength": 1})}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query(parameter: Parameter) -> dict[str, Any]:
    name, schema, words = parameter
    return {"name": name, "in": "query", "schema": schema, "description": words}

"""/v1/trees: tasks that belong together, submitted at once, watched and cancelled as one."""

from __future__ import annotations

import asyncio
import hashlib
import time

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath

from headway.api.query import MAX_LIMIT, one_page, seconds_of, whole
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of, id_of, rate_headers_of
from headway.api.tree_views import summary, tree_row, tree_view
from headway.domain.checks import check_key, check_name
from headway.domain.identity import MAX_ID
from headway.domain.lifecycle import State
from headway.domain.spec import TaskSpec
from headway.domain.tree import EAGER, check_levels
from headway.errors import InvalidInput
from headway.store.queries import query
from headway.wire.views.tasks import AcceptedMany
from headway.wire.views.trees import TreePage

_PAGE = query("tree.page")


class TreeSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A tree: its tasks name each other in `after`."""

    name: str
    tasks: list[TaskSpec]
    levels: str = "eager"


@post("/v1/trees", status_code=201)
async def submit_tree(request: Http) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    spec = await body_of(request, TreeSpec)
    check_name(spec.name)
    strict = check_levels(spec.levels)
    key = _key_of(request, spec)
    drafts = await core.drafts.many(caller.tenant, spec.tasks)
    await core.promises.check(caller.tenant, [draft for draft in drafts if not draft.edges])  # the rest begins when those have ended
    receipt = await core.admission.submit(caller.tenant, drafts, tree=spec.name, strict=strict, key=key)
    accepted = AcceptedMany([str(i) for i in receipt.ids], len(receipt.ids), str(receipt.tree))
    return answer(accepted, 201 if True in receipt.created else 200, rate_headers_of(core, caller.tenant))


def _key_of(request: Http, spec: TreeSpec) -> tuple[str, bytes] | None:
    """The idempotency key of the whole tree, and what tells this tree from another one."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    check_key(key)
    try:
        return key, hashlib.blake2b(msgspec.json.encode(spec), digest_size=16).digest()
    except OverflowError:
        raise InvalidInput("tasks: a number is larger than 64 bits", field="tasks") from None


@post("/v1/trees/stream", status_code=201, request_max_body_size=None)
async def stream_tree(request: Http) -> Response[bytes]:
    """A tree of any size: one task a line (NDJSON). The ids are not answered; `GET /v1/tasks?tree=` lists them."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    if "idempotency-key" in request.headers:
        raise InvalidInput(
            "the header Idempotency-Key does not go with a stream", hint="submit the tree in one request, by POST /v1/trees"
        )
    name = request.query_params.get("name", "")
    check_name(name)
    strict = check_levels(request.query_params.get("levels", EAGER))
    tree, count = await core.streams.submit(caller.tenant, name, strict, request.stream())
    return answer(AcceptedMany([], count, str(tree)), 201, rate_headers_of(core, caller.tenant))


@get("/v1/trees")
async def list_trees(request: Http) -> Response[bytes]:
    """Trees, newest first."""
    caller = await caller_of(request, *PEOPLE)
    limit = whole(request, "limit", 50, low=1, high=MAX_LIMIT)
    cursor = request.query_params.get("cursor")
    before = id_of(cursor, "cursor") if cursor else MAX_ID
    async with core_of(request).database.searches(caller.tenant) as connection:
        rows = await connection.fetch(_PAGE, caller.scope, request.query_params.get("name"), before, limit + 1)
    shown, last = one_page(rows, limit)
    return answer(TreePage([summary(row) for row in shown], str(last["id"]) if last else None))


@get("/v1/trees/{tree_id:str}")
async def show_tree(request: Http, tree_id: FromPath[str]) -> Response[bytes]:
    """The tree with its levels; `wait` with `seen` (the ETag of an earlier answer) holds until something changed."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    deadline = time.monotonic() + min(seconds_of(request, "wait", 0.0), 60.0)
    seen = request.query_params.get("seen") or request.headers.get("if-none-match")
    while True:
        view = await tree_view(core, tree, caller.scope)
        body = msgspec.json.encode(view)
        etag = hashlib.blake2b(body, digest_size=8).hexdigest()
        if etag != seen or time.monotonic() >= deadline:
            return Response(body, media_type="application/json", headers={"etag": etag})
        live = [int(task.id) for task in view.tasks if not State[task.state.upper()].final]
        if live:
            await core.waiting.any_final(live[:200], caller.scope, 0.3)
        await asyncio.sleep(0.03)


@post("/v1/trees/{tree_id:str}/cancel", status_code=200)
async def cancel_tree(request: Http, tree_id: FromPath[str]) -> Response[bytes]:
    """Cancels every task of the tree that is not final."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    await tree_row(core, tree, caller.scope)
    await core.trees.cancel(tree)
    return answer(await tree_view(core, tree, caller.scope))


@post("/v1/trees/{tree_id:str}/retry", status_code=200)
async def retry_tree(request: Http, tree_id: FromPath[str]) -> Response[bytes]:
    """Runs what failed again, and what was skipped behind it."""
    caller = await caller_of(request, *PEOPLE)
    core, tree = core_of(request), id_of(tree_id, "tree")
    await core.trees.retry(tree, caller.scope)
    return answer(await tree_view(core, tree, caller.scope))


ROUTES = [submit_tree, stream_tree, list_trees, show_tree, cancel_tree, retry_tree]

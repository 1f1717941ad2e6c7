"""Errors as RFC 9457 problem documents. The only place that knows HTTP statuses; a test holds the map total."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from headway import telemetry
from headway.domain.units import size_text
from headway.errors import HeadwayError
from headway.logs import log
from headway.wire.views.answers import Problem

STATUS: dict[str, int] = {
    "internal": 500,
    "invalid_input": 400,
    "unknown_field": 400,
    "cyclic_graph": 400,
    "impossible_tree": 422,
    "too_large": 413,
    "unsatisfiable_resources": 422,
    "idempotency_conflict": 409,
    "limit_exceeded": 429,
    "cannot_promise": 409,
    "not_found": 404,
    "conflict": 409,
    "unauthorized": 401,
    "forbidden": 403,
    "version_mismatch": 426,
    "unavailable": 503,
    "corrupt": 500,
    "config": 500,
    "database_in_use": 500,
    "stale_epoch": 503,
    "task_failed": 500,
}
_HTTP_CODES = {
    400: "invalid_input",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}
MEDIA_TYPE = "application/problem+json"


def problem_of(error: HeadwayError) -> Problem:
    """The document behind one of our errors."""
    return Problem(
        type=f"https://headway.invalid/problems/{error.code}",
        title=error.title,
        status=STATUS[error.code],
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        field=error.extra.get("field"),
        retry_after=error.extra.get("retry_after"),
    )


def respond(problem: Problem, extra: dict[str, Any] | None = None) -> Response[bytes]:
    headers = {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(problem.retry_after)))
        if extra and "limit" in extra:
            headers |= rate_headers(extra["limit"], extra["remaining"], problem.retry_after)
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    body = {**msgspec.to_builtins(problem), **(extra or {})}
    return Response(msgspec.json.encode(body), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def rate_headers(per_hour: int, remaining: int, reset_s: float) -> dict[str, str]:
    """The rate limiter's fields (draft-ietf-httpapi-ratelimit-headers): the quota, what is left of it, seconds until more is there."""
    return {
        "ratelimit-policy": f'"tasks";q={per_hour};w=3600',
        "ratelimit": f'"tasks";r={max(0, remaining)};t={max(0, math.ceil(reset_s))}',
    }


def on_headway_error(_request: Request[Any, Any, Any], error: HeadwayError) -> Response[bytes]:
    telemetry.rejected(error.code)
    known = {"field", "retry_after"}
    return respond(problem_of(error), {k: v for k, v in error.extra.items() if k not in known})


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What the framework found: no such route, a wrong method, a query parameter of the wrong type."""
    code = _HTTP_CODES.get(error.status_code, "invalid_input" if error.status_code < 500 else "internal")
    telemetry.rejected(code)
    detail = str(error.detail)
    extra = getattr(error, "extra", None)
    if isinstance(extra, list) and extra and isinstance(extra[0], dict):
        detail = "; ".join(f"{item.get('key', '')}: {item.get('message', '')}" for item in extra)
    hint = None
    if error.status_code in (404, 405):
        place, hint = request.url.path[:200], "GET /openapi.json lists every path and its methods"
        detail = f"there is nothing at {place}" if error.status_code == 404 else f"{request.method} is not a method of {place}"
    if error.status_code == 413:
        most = size_text(request.app.state.core.settings.max_body)
        detail, hint = f"the body is larger than {most}", "send it in several requests, or raise `max_body` of the servers"
    kind = f"https://headway.invalid/problems/{code}"
    response = respond(Problem(kind, code.replace("_", " ").capitalize(), error.status_code, code, detail, hint=hint))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


def on_unexpected(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log("request.failed", level="error", error=repr(error), exc_info=error)
    return respond(problem_of(HeadwayError("something went wrong inside Headway", hint="the server's log has the details")))

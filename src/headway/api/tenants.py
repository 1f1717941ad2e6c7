"""Tenants, keys, tiers and limits: /v1/tenants, /v1/keys, /v1/tiers, /v1/limits, /v1/whoami (A7 E6 G1)."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, delete, get, patch, post, put
from litestar.params import FromPath

from headway.api.audit import entry_of
from headway.api.query import one_page, text_of, whole
from headway.api.render import resources_view
from headway.api.request import PEOPLE, Http, answer, body_of, caller_of, core_of
from headway.control.access import Caller
from headway.control.core import Core
from headway.domain import units
from headway.domain.spec import ResourcesSpec
from headway.domain.tenant import Subscription, SubscriptionSpec, spec_of
from headway.errors import InvalidInput, NotFound
from headway.store.queries import query
from headway.wire.views.tenants import KeyPage, KeyView, LimitsView, LimitView, NewKeyView, TenantPage, TenantView

COUNTED = 100_000
LARGEST_KEY = 2**31 - 1
_PAGE = query("tenant.page")
_KEYS = query("token.list")
_USED = query("allowance.used")


class NewTenant(SubscriptionSpec, forbid_unknown_fields=True, omit_defaults=True):
    """A tenant: its name, and what of its subscription is not the default."""

    name: str = ""


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """A key for a role. `tenant` is the name of a tenant: needed for the role tenant, possible for reader."""

    role: str = "tenant"
    tenant: str | None = None
    name: str = ""
    expires: float | str | None = None  # a duration


@get("/v1/whoami")
async def whoami(request: Http) -> Response[bytes]:
    caller = await caller_of(request)
    return answer({"tenant": caller.tenant_name, "role": caller.role})


@get("/v1/limits")
async def limits(request: Http) -> Response[bytes]:
    """What the caller's tenant may use, uses, and has left."""
    caller = await caller_of(request, *PEOPLE)
    return answer(await limits_of(core_of(request), caller.tenant, caller.tenant_name))


@get("/v1/tenants")
async def list_tenants(request: Http) -> Response[bytes]:
    """Tenants by name."""
    caller = await caller_of(request, "admin")
    limit = whole(request, "limit", 100, low=1, high=1000)
    async with core_of(request).database.reads() as connection:
        rows = await connection.fetch(_PAGE, caller.scope, text_of(request, "cursor") or "", limit + 1)
    shown, last = one_page(rows, limit)
    return answer(TenantPage([_tenant(row) for row in shown], last["name"] if last else None))


@post("/v1/tenants", status_code=201)
async def add_tenant(request: Http) -> Response[bytes]:
    await caller_of(request, "admin")
    asked = await body_of(request, NewTenant)
    if not asked.name:
        raise InvalidInput("name: a tenant needs one", field="name")
    core = core_of(request)
    return answer(await _shown(core, await core.administration.create_tenant(asked.name, asked_of(asked), entry_of(request))), 201)


@get("/v1/tenants/{tenant:str}")
async def show_tenant(request: Http, tenant: FromPath[str]) -> Response[bytes]:
    """One tenant; a tenant sees itself, also as `self`."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    return answer(await _shown(core, await _seen(core, caller, tenant)))


@get("/v1/tenants/{tenant:str}/limits")
async def tenant_limits(request: Http, tenant: FromPath[str]) -> Response[bytes]:
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    number = await _seen(core, caller, tenant)
    return answer(await limits_of(core, number, caller.tenant_name if tenant == "self" else tenant))


@patch("/v1/tenants/{tenant:str}")
async def set_tenant(request: Http, tenant: FromPath[str]) -> Response[bytes]:
    """Change a subscription; what is left out stays, null takes a limit away."""
    await caller_of(request, "admin")
    core, asked = core_of(request), await body_of(request, SubscriptionSpec)
    number = await core.administration.tenant_id(tenant)
    await core.administration.set_subscription(number, asked, entry_of(request))
    return answer(await _shown(core, number))


@delete("/v1/tenants/{tenant:str}", status_code=200)
async def remove_tenant(request: Http, tenant: FromPath[str]) -> Response[bytes]:
    """Remove a tenant for good. Refused while it has tasks that have not ended, unless they are to be cancelled."""
    await caller_of(request, "admin")
    cancel = request.query_params.get("cancel") in ("1", "true")
    return answer(await core_of(request).removing.remove(tenant, entry_of(request), cancel=cancel))


@get("/v1/keys")
async def list_keys(request: Http) -> Response[bytes]:
    """Keys, the newest first, without the tokens themselves."""
    caller = await caller_of(request, *PEOPLE)
    limit = whole(request, "limit", 100, low=1, high=1000)
    before = whole(request, "cursor", LARGEST_KEY, low=1, high=LARGEST_KEY)
    async with core_of(request).database.reads() as connection:
        rows = await connection.fetch(_KEYS, caller.scope, before, limit + 1)
    shown, last = one_page(rows, limit)
    return answer(KeyPage([KeyView(**row) for row in shown], str(last["id"]) if last else None))


@post("/v1/keys", status_code=201)
async def add_key(request: Http) -> Response[bytes]:
    """A new key; the token is in this answer and nowhere else."""
    await caller_of(request, "admin")
    core, asked = core_of(request), await body_of(request, NewKey)
    tenant = None
    if asked.tenant is not None:
        try:
            tenant = await core.administration.tenant_id(asked.tenant)
        except NotFound as error:
            raise InvalidInput(f"tenant: {error.detail}", field="tenant") from None
    expires = None if asked.expires is None else units.seconds(asked.expires, "expires")
    token, row = await core.administration.create_key(asked.role, tenant, asked.name, expires, entry_of(request))
    return answer(NewKeyView(row["id"], token, asked.role, asked.tenant, asked.name, row["expires_at"]), 201)


@post("/v1/keys/{key:str}/revoke", status_code=200)
async def revoke_key(request: Http, key: FromPath[str]) -> Response[bytes]:
    """Take a key away; a tenant may take away its own."""
    caller = await caller_of(request, *PEOPLE)
    number = int(key) if key.isascii() and key.isdigit() and len(key) < 11 else 0
    if not 0 < number <= LARGEST_KEY:
        raise NotFound(f"there is no key {key[:40]!r}")
    row = await core_of(request).administration.revoke_key(number, caller.scope, entry_of(request))
    return answer(
        KeyView(row["id"], row["role"], row["tenant_name"], row["name"], row["created_at"], row["expires_at"], row["revoked_at"])
    )


@get("/v1/tiers")
async def list_tiers(request: Http) -> Response[bytes]:
    """The tiers the caller may name; an administrator may ask for those of a tenant."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    tenant = await _tier_owner(core, caller, text_of(request, "tenant"))
    return answer({name: resources_view(need, name) for name, need in core.tenants.tiers(tenant).items()})


@put("/v1/tiers/{tier:str}")
async def set_tier(request: Http, tier: FromPath[str]) -> Response[bytes]:
    """Define a tier: the operator's, or a tenant's own within its subscription."""
    caller = await caller_of(request, *PEOPLE)
    core, asked = core_of(request), await body_of(request, ResourcesSpec)
    tenant = await _tier_owner(core, caller, text_of(request, "tenant"))
    await core.administration.set_tier(tenant, tier, asked, entry_of(request))
    return answer(resources_view(core.tenants.tiers(tenant)[tier], tier))


@delete("/v1/tiers/{tier:str}", status_code=200)
async def remove_tier(request: Http, tier: FromPath[str]) -> Response[bytes]:
    """Take a tier away; a predefined one is then what it was."""
    caller = await caller_of(request, *PEOPLE)
    core = core_of(request)
    tenant = await _tier_owner(core, caller, text_of(request, "tenant"))
    await core.administration.set_tier(tenant, tier, None, entry_of(request))
    return answer({name: resources_view(need, name) for name, need in core.tenants.tiers(tenant).items()})


async def _tier_owner(core: Core, caller: Caller, asked: str | None) -> int | None:
    """Whose tiers are meant: a tenant's are its own, an administrator's are the operator's unless it names a tenant."""
    if caller.scope is not None:
        if asked not in (None, "self", caller.tenant_name):
            raise NotFound(f"there is no tenant {str(asked)[:60]!r}")
        return caller.tenant
    return None if asked is None else await core.administration.tenant_id(asked)


async def _seen(core: Core, caller: Caller, name: str) -> int:
    """The tenant that is named, if the caller may see it; another's is as if it were not there."""
    if name in ("self", caller.tenant_name) and (caller.scope is not None or name == "self"):
        return caller.tenant
    if caller.scope is not None:
        raise NotFound(f"there is no tenant {name[:60]!r}")
    return await core.administration.tenant_id(name)


async def _shown(core: Core, tenant: int) -> TenantView:
    async with core.database.reads() as connection:
        row = (await connection.fetch(_PAGE, tenant, "", 1))[0]
    return _tenant(row)


def _tenant(row: Any) -> TenantView:
    subscription = msgspec.json.decode(row["subscription"], type=Subscription)
    return TenantView(row["id"], row["name"], row["created_at"], spec_of(subscription))


def asked_of(asked: NewTenant) -> SubscriptionSpec:
    """The subscription in the request for a new tenant."""
    return SubscriptionSpec(**{name: getattr(asked, name) for name in SubscriptionSpec.__struct_fields__})


async def limits_of(core: Core, tenant: int, name: str) -> LimitsView:
    subscription = await core.tenants.known(tenant)
    async with core.database.reads() as connection:
        rows = await connection.fetch(_USED, tenant, COUNTED)
    await core.definitions.load_shapes(row["shape"] for row in rows)
    held = [row for row in rows if row["held"]]
    needs = [(core.definitions.shapes[row["shape"]], row["count"]) for row in held]
    rate = core.allowances.rate_of(tenant)
    left, burst = None if rate is None else float(rate[1]), subscription.burst_size
    return LimitsView(
        tenant=name,
        running=_limit(subscription.max_running, sum(row["count"] for row in held)),
        waiting=_limit(subscription.max_waiting, sum(row["count"] for row in rows if not row["held"])),
        cpus=_limit(subscription.max_cpus, sum(need.cpus_milli * count for need, count in needs) / 1000),
        memory=_limit(subscription.max_memory, sum(need.memory * count for need, count in needs)),
        submissions=LimitView(None, 0, None) if left is None else LimitView(burst, burst - left, left),
        rate_per_hour=subscription.rate_per_hour,
        subscription=spec_of(subscription),
    )


def _limit(limit: float | None, used: float) -> LimitView:
    return LimitView(limit, used, None if limit is None else max(0, limit - used))


ROUTES = [
    whoami, limits, list_tenants, add_tenant, show_tenant, tenant_limits, set_tenant, remove_tenant, list_keys, add_key,
    revoke_key, list_tiers, set_tier, remove_tier,
]  # fmt: skip

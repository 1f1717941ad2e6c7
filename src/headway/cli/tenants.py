"""`tenant`, `key`, `tier`, `limits`, `audit`: who may use how much, and who did what."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headway.cli.terminal import Terminal, command, fields, group, table
from headway.domain.units import duration_text, size_text

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.wire.views.tasks import ResourcesView
    from headway.wire.views.tenants import AuditView, KeyView, LimitsView, RemovedTenantView, TenantView

tenant = group(
    "Tenants: who shares the machines.", examples=["headway tenant ls", "headway tenant create acme --rate-per-hour 36000"]
)
key = group("Keys: what callers identify themselves with.", examples=["headway key create --tenant acme", "headway key revoke 7"])
tier = group("Tiers: names for amounts of resources.", examples=["headway tier ls", "headway tier set large cpus=8,memory=32GiB"])
limits = group("What a tenant may use, uses, and has left.")
audit = group("Who did what.")

TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Name of a tenant (administrators).", metavar="TENANT")]
NONE = "none"


CostClass = Annotated[str | None, typer.Option("--cost-class", help="Class it pays for.", metavar="NAME")]
Weight = Annotated[str | None, typer.Option("--weight", help="Share of its class against others.", metavar="N")]
Rate = Annotated[str | None, typer.Option("--rate-per-hour", help="Tasks accepted in an hour, or none.", metavar="N")]
Burst = Annotated[str | None, typer.Option("--burst", help="Tasks accepted at once, or none.", metavar="N")]
MaxRunning = Annotated[str | None, typer.Option("--max-running", help="Tasks on nodes at once, or none.", metavar="N")]
MaxWaiting = Annotated[str | None, typer.Option("--max-waiting", help="Tasks waiting at once, or none.", metavar="N")]
MaxCpus = Annotated[str | None, typer.Option("--max-cpus", help="CPUs of all its running tasks, or none.", metavar="N")]
MaxMemory = Annotated[str | None, typer.Option("--max-memory", help="Memory of all its running tasks, or none.", metavar="SIZE")]
DefaultCap = Annotated[str | None, typer.Option("--default-cap", help="Execution cap of tasks that say none.", metavar="DURATION")]
MaxCap = Annotated[str | None, typer.Option("--max-cap", help="Longest execution cap.", metavar="DURATION")]
DefaultTier = Annotated[str | None, typer.Option("--default-tier", help="Tier of tasks that say none.", metavar="TIER")]
Tolerance = Annotated[
    str | None,
    typer.Option("--delay-tolerance", help="Of tasks that say none, or none.", metavar="DURATION"),
]
MaxWait = Annotated[str | None, typer.Option("--max-wait", help="Of tasks that say none, or none.", metavar="DURATION")]
Isolation = Annotated[str | None, typer.Option("--isolation", help="Least isolation: none, sandbox, container.", metavar="LEVEL")]
Network = Annotated[
    str | None,
    typer.Option("--network", help="What its tasks may reach: A,B or none.", metavar="HOSTS"),
]
Suspended = Annotated[bool | None, typer.Option("--suspended/--active", help="Accept nothing new, or again.")]


@command(tenant, "create", examples=["headway tenant create acme", "headway tenant create acme --rate-per-hour 36000 --burst 1000"])
def tenant_create(
    terminal: Terminal, name: TenantName, cost_class: CostClass = None, weight: Weight = None, rate_per_hour: Rate = None,
    burst: Burst = None, max_running: MaxRunning = None, max_waiting: MaxWaiting = None, max_cpus: MaxCpus = None,
    max_memory: MaxMemory = None, default_cap: DefaultCap = None, max_cap: MaxCap = None, default_tier: DefaultTier = None,
    delay_tolerance: Tolerance = None, max_wait: MaxWait = None, isolation: Isolation = None, network: Network = None,
    suspended: Suspended = None,
) -> None:  # fmt: skip
    """Add a tenant. What is not said of its subscription has its default; its tasks run in the sandbox."""
    changes = _changes(locals())
    _show_tenant(terminal, "POST", "/v1/tenants", {"name": name, **changes})


@command(tenant, "set", examples=["headway tenant set acme --burst 500", "headway tenant set acme --rate-per-hour none"])
def tenant_set(
    terminal: Terminal, name: TenantName, cost_class: CostClass = None, weight: Weight = None, rate_per_hour: Rate = None,
    burst: Burst = None, max_running: MaxRunning = None, max_waiting: MaxWaiting = None, max_cpus: MaxCpus = None,
    max_memory: MaxMemory = None, default_cap: DefaultCap = None, max_cap: MaxCap = None, default_tier: DefaultTier = None,
    delay_tolerance: Tolerance = None, max_wait: MaxWait = None, isolation: Isolation = None, network: Network = None,
    suspended: Suspended = None,
) -> None:  # fmt: skip
    """Change a tenant's subscription; what is not said stays, `none` takes a limit away."""
    changes = _changes(locals())
    if not changes:
        raise typer.BadParameter("nothing to change", param_hint="--burst and others")
    _show_tenant(terminal, "PATCH", f"/v1/tenants/{quote(name, safe='')}", changes)


@command(tenant, "ls", examples=["headway tenant ls", "headway tenant ls --json"])
def tenant_ls(terminal: Terminal) -> None:
    """List tenants and what they subscribed to."""
    from headway.cli.session import talk
    from headway.wire.views.tenants import TenantPage

    async def look(server: Server) -> None:
        found = [one for page in await server.pages("/v1/tenants", TenantPage) for one in page.tenants]
        terminal.answer(found, ids=[one.name for one in found], table=lambda: _tenants(found))

    talk(terminal, look)


@command(tenant, "show", examples=["headway tenant show acme"])
def tenant_show(terminal: Terminal, name: TenantName) -> None:
    """Show a tenant: limits, what it uses, what is left."""
    _show_limits(terminal, f"/v1/tenants/{quote(name, safe='')}/limits")


@command(tenant, "rm", examples=["headway tenant rm acme", "headway tenant rm acme --cancel --yes"])
def tenant_rm(
    terminal: Terminal,
    name: TenantName,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel its tasks that have not ended.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a tenant for good: its keys, schedules, webhooks, secrets and tiers. History stays until its retention ends."""
    from headway.cli.session import talk, with_query
    from headway.wire.views.tenants import RemovedTenantView

    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("removing a tenant asks first, and nobody is there to answer: add --yes", param_hint="--yes")
        typer.confirm(f"Remove the tenant {name} and all it has, for good?", abort=True)

    async def ask(server: Server) -> None:
        path = with_query(f"/v1/tenants/{quote(name, safe='')}", {"cancel": "1" if cancel else None})
        gone = await server.send("DELETE", path, RemovedTenantView)
        terminal.answer(gone, ids=[gone.name], table=lambda: _removed(gone))

    talk(terminal, ask)


@command(limits, "limits", examples=["headway limits", "headway limits --json | jq .submissions.left"])
def own_limits(terminal: Terminal) -> None:
    """Show what your tenant may use, uses, and has left."""
    _show_limits(terminal, "/v1/limits")


@command(
    key, "create", examples=["headway key create --tenant acme --name ci --expires 90d", "headway key create --role agent -o quiet"]
)
def key_create(
    terminal: Terminal,
    role: Annotated[str | None, typer.Option("--role", help="admin, tenant, reader or agent.")] = None,
    tenant: OfTenant = None,
    name: Annotated[str, typer.Option("--name", help="Who or what uses it; shown in the audit.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long it works, for example 90d.", metavar="DURATION")
    ] = None,
) -> None:
    """Make a key and print its token, which is shown this once."""
    from headway.cli.moments import when
    from headway.cli.session import talk
    from headway.wire.views.tenants import NewKeyView

    async def ask(server: Server) -> None:
        body = {"role": role or ("tenant" if tenant else "admin"), "tenant": tenant, "name": name, "expires": expires}
        made = await server.post("/v1/keys", NewKeyView, body)
        rows = [("key", made.id), ("role", made.role), ("tenant", made.tenant), ("expires", when(made.expires_at)), ("token", made.token)]
        terminal.answer(made, ids=[made.token], table=lambda: fields([(word, value) for word, value in rows if value is not None]))

    talk(terminal, ask)


@command(key, "ls", examples=["headway key ls"])
def key_ls(terminal: Terminal) -> None:
    """List keys: whose they are, whether they work. Tokens are not kept, and so not shown."""
    from headway.cli.session import talk
    from headway.wire.views.tenants import KeyPage

    async def look(server: Server) -> None:
        found = [one for page in await server.pages("/v1/keys", KeyPage) for one in page.keys]
        terminal.answer(found, ids=[str(one.id) for one in found], table=lambda: _keys(found))

    talk(terminal, look)


@command(key, "revoke", examples=["headway key revoke 7"])
def key_revoke(terminal: Terminal, number: Annotated[int, typer.Argument(metavar="KEY", help="Number of the key.")]) -> None:
    """Take a key away. Every server refuses it within 5 seconds."""
    from headway.cli.session import talk
    from headway.wire.views.tenants import KeyView

    async def ask(server: Server) -> None:
        gone = await server.post(f"/v1/keys/{number}/revoke", KeyView)
        terminal.answer(gone, ids=[str(gone.id)], table=lambda: f"key {gone.id} ({gone.role}) is revoked")

    talk(terminal, ask)


@command(tier, "ls", examples=["headway tier ls", "headway tier ls --tenant acme"])
def tier_ls(terminal: Terminal, tenant: OfTenant = None) -> None:
    """List tiers and what they stand for."""
    from headway.cli.session import talk
    from headway.wire.views.tasks import ResourcesView

    async def look(server: Server) -> None:
        tiers = await server.get("/v1/tiers", dict[str, ResourcesView], tenant=tenant)
        terminal.answer(tiers, ids=list(tiers), table=lambda: _tiers(tiers))

    talk(terminal, look)


@command(tier, "set", examples=["headway tier set large cpus=8,memory=32GiB", "headway tier set gpu tier=premium,labels.gpu=a100"])
def tier_set(
    terminal: Terminal,
    name: Annotated[str, typer.Argument(metavar="TIER", help="Name of the tier.")],
    resources: Annotated[str, typer.Argument(metavar="K=V,...", help="What it stands for; the rest comes from its `tier`.")],
    tenant: OfTenant = None,
) -> None:
    """Define a tier: for everybody as an administrator, for your own tenant as a tenant."""
    from headway.cli.options import settings
    from headway.cli.session import talk, with_query
    from headway.wire.views.tasks import ResourcesView

    async def ask(server: Server) -> None:
        import msgspec

        path = with_query(f"/v1/tiers/{quote(name, safe='')}", {"tenant": tenant})
        made = await server.send("PUT", path, ResourcesView, msgspec.json.encode(settings(resources, "K=V")))
        terminal.answer(made, ids=[name], table=lambda: _tiers({name: made}))

    talk(terminal, ask)


@command(tier, "rm", examples=["headway tier rm large"])
def tier_rm(
    terminal: Terminal, name: Annotated[str, typer.Argument(metavar="TIER", help="Name of the tier.")], tenant: OfTenant = None
) -> None:
    """Take a tier away; a predefined one is again what it was."""
    from headway.cli.session import talk, with_query
    from headway.wire.views.tasks import ResourcesView

    async def ask(server: Server) -> None:
        path = with_query(f"/v1/tiers/{quote(name, safe='')}", {"tenant": tenant})
        left = await server.send("DELETE", path, dict[str, ResourcesView])
        terminal.answer(left, ids=list(left), table=lambda: _tiers(left))

    talk(terminal, ask)


@command(
    audit,
    "audit",
    examples=["headway audit --since 1d", "headway audit --action 'tenants.*'", "headway audit --actor 'ci#*' --json"],
)
def show_audit(
    terminal: Terminal,
    actor: Annotated[str | None, typer.Option("--actor", help="Key, as NAME#NUMBER; * stands for anything.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="For example tasks.cancel or 'tenants.*'.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="What it was done to.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="ISO 8601, or 1h for an hour ago.", metavar="TIME")] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", min=1, max=1000)] = 50,
) -> None:
    """List who did what, the newest first."""
    from headway.cli.session import talk
    from headway.wire.views.tenants import AuditPage

    async def look(server: Server) -> None:
        page = await server.get("/v1/audit", AuditPage, actor=actor, action=action, target=target, since=since, limit=limit)
        terminal.answer(page.entries, ids=[one.id for one in page.entries], table=lambda: _audit(page.entries))

    talk(terminal, look)


def _changes(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of a subscription that were said, as the API takes them."""
    found: dict[str, Any] = {}
    for field, value in said.items():
        if field in ("terminal", "name") or value is None:
            continue
        if field == "network":
            found[field] = [] if value == NONE else value.split(",")
        elif isinstance(value, str) and value.lower() == NONE and field != "isolation":
            found[field] = None
        else:
            found[field] = _number(value, field) if field in _NUMBERS else value
    return found


_NUMBERS = ("weight", "rate_per_hour", "burst", "max_running", "max_waiting", "max_cpus")


def _number(text: str, field: str) -> int | float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):  # JSON has no word for it
        raise typer.BadParameter(f"{text!r} is not a number", param_hint=f"--{field.replace('_', '-')}")
    return int(value) if value.is_integer() else value


def _show_tenant(terminal: Terminal, method: str, path: str, body: dict[str, Any]) -> None:
    from headway.cli.session import talk
    from headway.wire.views.tenants import TenantView

    async def ask(server: Server) -> None:
        import msgspec

        found = await server.send(method, path, TenantView, msgspec.json.encode(body))
        terminal.answer(found, ids=[found.name], table=lambda: _tenant(found))

    talk(terminal, ask)


def _show_limits(terminal: Terminal, path: str) -> None:
    from headway.cli.session import talk
    from headway.wire.views.tenants import LimitsView

    async def look(server: Server) -> None:
        found = await server.get(path, LimitsView)
        terminal.answer(found, ids=[found.tenant], table=lambda: _limits(found))

    talk(terminal, look)


def _tenant(found: TenantView) -> str:
    return fields([("tenant", found.name), *((word.replace("_", " "), _value(value, word)) for word, value in found.subscription.items())])


def _removed(gone: RemovedTenantView) -> str:
    with_it = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in (
        ("key", gone.keys), ("schedule", gone.schedules), ("webhook", gone.webhooks), ("secret", gone.secrets),
    ) if count]  # fmt: skip
    said = f"tenant {gone.name} is removed" + (f", with {', '.join(with_it)}" if with_it else "")
    tasks = "1 task is" if gone.cancelling == 1 else f"{gone.cancelling} tasks are"
    return said + (f"; {tasks} being cancelled" if gone.cancelling else "")


def _value(value: Any, word: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    if word == "max_memory":
        return size_text(value)
    if word in ("default_cap", "max_cap", "delay_tolerance", "max_wait"):
        return duration_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tenants(found: list[TenantView]) -> str:
    header = ("TENANT", "CLASS", "WEIGHT", "RATE/H", "BURST", "RUNNING", "WAITING", "CPUS", "STATE")
    names = ("cost_class", "weight", "rate_per_hour", "burst", "max_running", "max_waiting", "max_cpus")
    rows = [
        (one.name, *(_value(one.subscription[word]) for word in names), "suspended" if one.subscription["suspended"] else "active")
        for one in found
    ]
    return table(header, rows, right=header[2:8])


def _limits(found: LimitsView) -> str:
    rows = []
    for word, limit in (
        ("running", found.running), ("waiting", found.waiting), ("cpus", found.cpus), ("memory", found.memory),
        ("submissions now", found.submissions),
    ):  # fmt: skip
        show = size_text if word == "memory" else lambda value: f"{value:g}"
        amounts = (limit.limit, limit.used, limit.left)
        rows.append((word, *("-" if amount is None else show(amount) for amount in amounts)))
    rate = "-" if found.rate_per_hour is None else f"{found.rate_per_hour:g}"
    below = fields([("submissions an hour", rate), ("longest run", duration_text(found.subscription["max_cap"]))])
    return f"{found.tenant}\n" + table(("", "LIMIT", "USED", "LEFT"), rows, right=("LIMIT", "USED", "LEFT")) + "\n" + below


def _keys(found: list[KeyView]) -> str:
    from headway.cli.moments import ago

    rows = [
        (one.id, one.role, one.tenant or "-", one.name or "-", ago(one.created_at), _until(one))
        for one in found
    ]  # fmt: skip
    return table(("KEY", "ROLE", "TENANT", "NAME", "MADE", "WORKS"), rows, right=("KEY", "MADE"))


def _until(one: KeyView) -> str:
    if one.revoked_at is not None:
        return "revoked"
    if one.expires_at is None:
        return "always"
    from headway.cli.moments import now

    return f"{'until' if one.expires_at > now() else 'expired'} {one.expires_at.astimezone():%Y-%m-%d %H:%M}"


def _tiers(tiers: dict[str, ResourcesView]) -> str:
    rows = []
    for name, tier in tiers.items():
        more = [f"{word}={getattr(tier, word)}" for word in ("iops", "bandwidth", "ports") if getattr(tier, word)]
        more += [f"{label}={value}" for label, value in tier.labels.items()]
        rows.append((name, f"{tier.cpus:g}", size_text(tier.memory), size_text(tier.disk), " ".join(more)))
    return table(("TIER", "CPUS", "MEMORY", "DISK", "AND"), rows, right=("CPUS", "MEMORY", "DISK"))


def _audit(entries: list[AuditView]) -> str:
    from headway.cli.moments import ago

    rows = [(ago(one.at), one.actor, one.tenant or "-", one.action, one.target, one.result, _difference(one)) for one in entries]
    return table(("WHEN", "WHO", "TENANT", "DID", "TO", "RESULT", "CHANGED"), rows, right=("WHEN",))


def _difference(one: AuditView) -> str:
    """Which fields changed, from what to what."""
    before, after = (value if isinstance(value, dict) else {} for value in (one.before, one.after))
    if not before:
        return ""
    changed = [word for word in {**before, **after} if before.get(word) != after.get(word)]
    return ", ".join(f"{word}: {_value(before.get(word))} -> {_value(after.get(word))}" for word in changed)

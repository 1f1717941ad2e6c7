"""`webhook create|ls|show|set|rotate|test|deliveries|replay|delete` and `events`: being told what happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.terminal import Terminal, command, fields, group, table
from headway.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headway.cli.session import Server
    from headway.wire.views.events import DeliveryView, EventView, WebhookView

app = group(
    "Webhooks: create, ls, set, rotate, test, deliveries, replay.",
    examples=["headway webhook create ops https://example.com/hook --event failed", "headway webhook ls", "headway webhook test ops"],
)
watch = group("See what happens.")

Name = Annotated[str, typer.Argument(metavar="NAME")]
Events = Annotated[list[str] | None, typer.Option("--event", help="A kind of event, or `finished`; repeat for more.", metavar="KIND")]


def _path(name: str, *rest: str) -> str:
    from urllib.parse import quote

    return "/".join(["/v1/webhooks", quote(name, safe=""), *rest])


@command(app, "ls", examples=["headway webhook ls", "headway webhook ls --json"])
def ls(terminal: Terminal) -> None:
    """List webhooks."""
    from headway.cli.session import talk
    from headway.wire.views.events import WebhookView

    async def look(server: Server) -> None:
        found = await server.get("/v1/webhooks", list[WebhookView])
        terminal.answer(found, ids=[one.name for one in found], table=lambda: _table(found))

    talk(terminal, look)


@command(
    app,
    "create",
    examples=[
        "headway webhook create ops https://example.com/hook",
        "headway webhook create pager https://example.com/page --event failed --event killed",
    ],
)
def create(
    terminal: Terminal,
    name: Name,
    address: Annotated[str, typer.Argument(metavar="URL")],
    event: Events = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="Hear of every tenant (administrators).")] = False,
    secret: Annotated[str | None, typer.Option("--secret", help="Use this secret, whsec_...; one is made when not given.")] = None,
) -> None:
    """Add a webhook and print its secret, which is shown only now."""
    body = {"name": name, "url": address, "all_tenants": all_tenants, "secret": secret, **({"events": event} if event else {})}
    _change(terminal, "POST", "/v1/webhooks", body)


@command(app, "show", examples=["headway webhook show ops"])
def show(terminal: Terminal, name: Name) -> None:
    """Show a webhook."""
    _change(terminal, "GET", _path(name))


@command(app, "set", examples=["headway webhook set ops --event failed", "headway webhook set ops --disable"])
def set_(
    terminal: Terminal,
    name: Name,
    to: Annotated[str | None, typer.Option("--to", help="Another address.", metavar="URL")] = None,
    event: Events = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Tell it, or not: what happens meanwhile is lost.")] = None,
) -> None:
    """Change a webhook."""
    given = {"url": to, "events": event, "enabled": enabled}
    _change(terminal, "PATCH", _path(name), {key: value for key, value in given.items() if value is not None})


@command(app, "rotate", examples=["headway webhook rotate ops"])
def rotate(terminal: Terminal, name: Name) -> None:
    """Give a webhook a new secret; the old one signs along for a day."""
    _change(terminal, "POST", _path(name, "rotate"))


@command(app, "test", examples=["headway webhook test ops"])
def test(terminal: Terminal, name: Name) -> None:
    """Send a message that says nothing, to see whether it arrives."""
    _count(terminal, "POST", _path(name, "test"), {}, "is on its way; `webhook deliveries` tells whether it arrived")


@command(
    app,
    "replay",
    examples=["headway webhook replay ops --dead", "headway webhook replay ops --since 2h"],
)
def replay(
    terminal: Terminal,
    name: Name,
    messages: Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE...]", show_default=False)] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All that were given up.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="All made since this: 1h (ago) or ISO 8601.", metavar="TIME")] = None,
) -> None:
    """Send messages again that were delivered or given up."""
    from headway.cli.moments import moment

    since = moment(since, "--since")
    body = {"messages": messages or [], "dead": dead, "since": since}
    _count(terminal, "POST", _path(name, "replay"), body, "sent again")


@command(app, "delete", examples=["headway webhook delete ops"])
def delete(terminal: Terminal, name: Name) -> None:
    """Remove a webhook with everything that waits for it."""
    _count(terminal, "DELETE", _path(name), None, "removed")


@command(app, "deliveries", examples=["headway webhook deliveries ops", "headway webhook deliveries ops --state dead"])
def deliveries(
    terminal: Terminal,
    name: Name,
    state: Annotated[str | None, typer.Option("--state", help="due, delivered or dead.")] = None,
) -> None:
    """List the messages for a webhook, the newest first."""
    from headway.cli.session import talk
    from headway.wire.views.events import DeliveryView

    async def look(server: Server) -> None:
        found = await server.get(_path(name, "deliveries"), list[DeliveryView], state=state)
        terminal.answer(found, ids=[one.message for one in found], table=lambda: _deliveries(found))

    talk(terminal, look)


@command(
    watch,
    "events",
    examples=["headway events", "headway events -f --kind failed,killed", "headway events --since 1d --json"],
)
def events(
    terminal: Terminal,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="Begin 1h ago, or at ISO 8601; without -f, 10m.", metavar="TIME")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only these kinds, separated by commas.", metavar="KIND,...")] = None,
    after: Annotated[str | None, typer.Option("--after", help="Only what came after this event.", metavar="ID")] = None,
) -> None:
    """Print what happened to tasks, or what happens."""
    from headway.cli.moments import moment, now
    from headway.cli.session import talk

    begin = moment(since if since or after or follow else "10m", "--since")

    async def look(server: Server) -> None:
        started = now().isoformat()
        at, last = begin, after
        while True:
            try:
                async for event in _stream(server, at, kind=kind, after=last, follow=int(follow)):
                    _print(terminal, event)
                    last = event.id
                if not follow:
                    return
            except Unavailable:
                if not follow:
                    raise
            if not await server.is_back():  # one that ends in order closes the stream in order, too
                raise Unavailable(f"the stream of events ended, and no server answers at {server.url}", hint="`--after ID` goes on")
            at = None if last else at or started

    talk(terminal, look)


def _stream(server: Server, begin: str | None, **query: Any) -> AsyncIterator[EventView]:
    """Events from a moment on; the server counts from its own clock backwards."""
    import datetime

    from headway.cli.moments import now
    from headway.client.streams import events_of

    since = None if begin is None else max((now() - datetime.datetime.fromisoformat(begin)).total_seconds(), 0.0)
    return events_of(_with_empty(server, since=since, **query))


async def _with_empty(server: Server, **query: Any) -> Any:
    """The lines of the stream, the empty ones too: they end an event."""
    rest = b""
    async for piece in server.pieces("/v1/events", **query):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line


def _print(terminal: Terminal, event: EventView) -> None:
    import msgspec

    if terminal.wants_json:
        text = msgspec.json.encode(event).decode()
    elif terminal.quiet:
        text = event.id
    else:
        shown = " ".join(event.tasks[:3]) + (f" and {len(event.tasks) - 3} more" if len(event.tasks) > 3 else "")
        data = " ".join(f"{key}={_short(value)}" for key, value in event.data.items())
        text = f"{event.at.astimezone():%H:%M:%S}  {event.kind:<22}  {shown}  {data}".rstrip()
    print(text, flush=True)


def _short(value: Any) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _change(terminal: Terminal, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    import msgspec

    from headway.cli.session import talk
    from headway.wire.views.events import WebhookView

    async def ask(server: Server) -> None:
        content = b"" if body is None else msgspec.json.encode(body)
        found = await server.send(method, path, WebhookView, content)
        terminal.answer(found, ids=[found.name], table=lambda: _one(found))

    talk(terminal, ask)


def _count(terminal: Terminal, method: str, path: str, body: dict[str, Any] | None, word: str) -> None:
    import msgspec

    from headway.cli.session import talk
    from headway.wire.views.answers import Changed

    async def ask(server: Server) -> None:
        content = b"" if body is None else msgspec.json.encode(body)
        done = await server.send(method, path, Changed, content)
        terminal.answer(done, ids=done.ids, table=lambda: f"{done.changed} {word}")

    talk(terminal, ask)


def _table(found: list[WebhookView]) -> str:
    rows = [
        (one.name, "on" if one.enabled else "off", one.waiting, one.dead, ",".join(one.events) or "(named by tasks)", one.url)
        for one in found
    ]
    return table(("NAME", "STATE", "WAITING", "DEAD", "EVENTS", "URL"), rows, right=("WAITING", "DEAD"), wide="EVENTS")


def _one(one: WebhookView) -> str:
    if one.secret:
        print("keep the secret now, it is not shown again", file=sys.stderr)
    return fields(
        [
            ("name", one.name),
            ("url", one.url),
            ("events", ", ".join(one.events)),
            ("enabled", "yes" if one.enabled else "no"),
            ("tenant", one.tenant or "(all)"),
            ("waiting", one.waiting),
            ("dead", one.dead),
            ("secret", one.secret),
        ]
    )


def _deliveries(found: list[DeliveryView]) -> str:
    from headway.cli.moments import ago

    rows = [(one.message, one.kind, one.state, one.attempts, ago(one.created_at), one.status or "", one.error or "") for one in found]
    return table(("MESSAGE", "EVENT", "STATE", "TRIES", "AGE", "STATUS", "ERROR"), rows, right=("TRIES",), wide="ERROR")

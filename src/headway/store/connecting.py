"""The one way to a connection: what we rely on is set by ourselves, whatever a DBA has set for our role, the database or the server (L4).

It is set by a statement after the start and not by parameters of the start: a pooler (PgBouncer) refuses those that it does not know.
What decides whether a commit lasts, and whether anything may be written, stays the DBA's: both are told, and not overruled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from headway.store.pool import Connection
from headway.store.queries import query
from headway.store.unreached import AWAY, reason
from headway.wire.keep_alive import keep_alive

CONNECT_S = 5.0
LEAST_S = 2.0  # for each of several hosts
UNANSWERED_S = 10.0
_SETTLE = query("session.settle")

_OURS = {
    "search_path": "headway",
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "jit": "off",
    # Every guard in our statements is written for it: under a stricter one half of the commits under load would fail and be repeated.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",  # the pools keep theirs open
    # When our machine dies or is cut off, PostgreSQL lets go of what we have locked after half a minute; by itself it takes two hours.
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


class Reach:
    """The way to one database, which may have several hosts: the one that answered last is asked first."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._each = one_by_one(dsn)

    async def connect(
        self,
        name: str,
        *,
        settings: Mapping[str, str] | None = None,
        command_timeout: float | None = None,
        target: str = "read-write",
    ) -> Connection:
        """A connection with our settings and these; `target` "any" takes one that only reads too."""
        failed: list[str] = []
        for dsn in self._each:
            try:
                connection = await self._dial(dsn, name, command_timeout, target)
                break
            except (*AWAY, asyncpg.TargetServerAttributeNotMatched) as error:
                if len(self._each) == 1:
                    raise
                failed.append(f"{_hosts(dsn)}: {reason(error)}")
        else:
            raise ConnectionError("; ".join(failed))
        self._each.sort(key=lambda one: one != dsn)
        try:
            wanted = {**_OURS, **(settings or {})}
            await connection.fetch(_SETTLE, list(wanted), list(wanted.values()), timeout=CONNECT_S)
            keep_alive(connection._transport.get_extra_info("socket"), unanswered_s=UNANSWERED_S)  # the driver shows it nowhere else
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _dial(self, dsn: str, name: str, command_timeout: float | None, target: str) -> Any:
        return await asyncpg.connect(
            dsn, timeout=max(CONNECT_S / len(self._each), LEAST_S), command_timeout=command_timeout, target_session_attrs=target,
            server_settings={"application_name": name},
        )  # fmt: skip


async def connect(dsn: str, name: str, *, target: str = "read-write") -> Connection:
    """One connection, for one errand."""
    return await Reach(dsn).connect(name, target=target)


def one_by_one(dsn: str) -> list[str]:
    """The URL for each of its hosts. The driver has one limit of time for all of them: a first one that is dead and swallows what is sent
    to it would leave none for the second."""
    parts = urlsplit(dsn)
    who, at, hosts = parts.netloc.rpartition("@")
    if "," in hosts:
        return [parts._replace(netloc=f"{who}{at}{host}").geturl() for host in hosts.split(",")]
    asked = dict(parse_qsl(parts.query))
    if "," not in asked.get("host", "") or hosts:
        return [dsn]
    named = asked["host"].split(",")
    ports = asked.get("port", "5432").split(",")
    ports = ports * len(named) if len(ports) == 1 else ports
    if len(ports) != len(named):
        return [dsn]  # the driver says what is wrong with it
    base = dsn.partition("?")[0]
    return [f"{base}?{urlencode({**asked, 'host': host, 'port': port})}" for host, port in zip(named, ports, strict=True)]


def _hosts(dsn: str) -> str:
    parts = urlsplit(dsn)
    return parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "this machine")

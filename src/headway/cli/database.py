"""`db migrate|status`: the schema `headway` inside a PostgreSQL of your own."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.cli.terminal import Terminal, command, group, table
from headway.errors import ConfigError

app = group(
    "The database: Headway's tables inside it.",
    examples=["headway db migrate --database postgresql://headway@db/app", "headway db status"],
)

Database = Annotated[str | None, typer.Option("--database", help="The PostgreSQL (HEADWAY_DATABASE).", metavar="URL")]


@command(app, "migrate", examples=["headway db migrate --database postgresql://headway@db/app"])
def migrate(terminal: Terminal, database: Database = None) -> None:
    """Bring the tables up to date; safe while servers run."""
    import asyncio

    from headway.store.migrate import migrate as apply

    done = asyncio.run(apply(_dsn(terminal, database)))
    terminal.answer({"applied": done}, ids=done, table=lambda: "\n".join(f"applied {name}" for name in done) or "up to date")


@command(app, "status", examples=["headway db status --database postgresql://headway@db/app", "headway db status --json"])
def status(terminal: Terminal, database: Database = None) -> int:
    """List migrations and whether the database has them; exit code 1 when some are missing."""
    import asyncio

    from headway.store.migrate import status as ask

    found = asyncio.run(ask(_dsn(terminal, database)))
    terminal.answer(
        [{"name": name, "applied": applied} for name, applied in found],
        ids=[name for name, applied in found if not applied],
        table=lambda: table(("MIGRATION", "APPLIED"), [(name, "yes" if applied else "no") for name, applied in found]),
    )
    return 0 if all(applied for _, applied in found) else 1


def _dsn(terminal: Terminal, database: str | None) -> str:
    dsn = terminal.settings(database=database).database
    if dsn is None:
        raise ConfigError(
            "no database is named",
            hint="--database or HEADWAY_DATABASE; the embedded one is brought up to date by `headway up` itself",
        )
    return dsn

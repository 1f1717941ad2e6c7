"""What keeps us from a database, in our words: it does not run, the URL is wrong, the role may not.

The URL itself is never repeated: it may hold a password.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import asyncpg

from headway.errors import ConfigError, Unavailable

SETTING = "--database or HEADWAY_DATABASE"
FORM = "postgresql://USER@HOST:PORT/DATABASE"
# It is not there, or not for us now. What else a server says is of what it was asked, and no question of where it is.
AWAY = (
    OSError,  # TimeoutError is one
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,  # it is starting
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InterfaceError,
)


@contextlib.contextmanager
def in_our_words(dsn: str) -> Iterator[None]:
    """The driver's errors as ours, while a database is met for the first time."""
    try:
        yield
    except asyncpg.ClientConfigurationError as error:
        raise ConfigError(f"the database's URL cannot be read: {error}", hint=f"write {FORM} ({SETTING})", where=SETTING) from error
    except ValueError:  # which repeats what it took for a port, or for an option: it may be half of a password
        hint = f"write {FORM} ({SETTING}); in a password / ? # [ and @ are %2F %3F %23 %5B and %40"
        raise ConfigError("the database's URL cannot be read: its parts are not where they belong", hint=hint, where=SETTING) from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        hint = f"check user, password and database in its URL ({SETTING}); a database of its own is made with createdb"
        raise ConfigError(f"the database at {_place(dsn)} refuses us: {error}", hint=hint, where=SETTING) from error
    except asyncpg.InsufficientPrivilegeError as error:
        hint = "its user makes the schema `headway`, or owns it: grant create on database DATABASE to USER"
        raise ConfigError(f"the database at {_place(dsn)} refuses us: {error}", hint=hint, where=SETTING) from error
    except AWAY as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = f"does it run, and is its URL right ({SETTING})?"
        raise Unavailable(f"the database at {_place(dsn)} does not answer: {reason}", hint=hint) from error


def _place(dsn: str) -> str:
    """Host and port, or the folder of its socket."""
    parts = urlsplit(dsn)
    folder = parse_qs(parts.query).get("host")
    if folder and not parts.hostname:
        return folder[0]
    return (parts.netloc.rpartition("@")[2]) or "this machine"

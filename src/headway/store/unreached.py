"""What keeps us from a database, in our words: it does not run, the URL is wrong, the role may not.

The URL itself is never repeated: it may hold a password.
"""

from __future__ import annotations

import contextlib
import os
import ssl
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
FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
# What a session prepared is not there any more in the next transaction, or is somebody else's.
POOLED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
SESSION_MODE = (
    "Headway needs sessions of its own (prepared statements, LISTEN, locks): connect to PostgreSQL directly, or set "
    "pool_mode = session for this database in the pooler, with a pool of at least pool_size + 1 connections for each server"
)
_READ_ONLY = "it takes no writes: it is a replica, or default_transaction_read_only is on for the server, the database or our role"


@contextlib.contextmanager
def in_our_words(dsn: str) -> Iterator[None]:
    """The driver's errors as ours, while a database is met for the first time."""
    try:
        yield
    except ssl.SSLError as error:  # before ValueError, which some of them are
        hint = "sslrootcert= in its URL names the authority's file (PEM), and the host must stand in the certificate (sslmode=verify-full)"
        raise ConfigError(f"the database at {_place(dsn)} cannot be trusted: {reason(error)}", hint=hint, where=SETTING) from error
    except asyncpg.ClientConfigurationError as error:
        raise ConfigError(f"the database's URL cannot be read: {error}", hint=f"write {FORM} ({SETTING})", where=SETTING) from error
    except ValueError:  # which repeats what it took for a port, or for an option: it may be half of a password
        hint = f"write {FORM} ({SETTING}); in a password / ? # [ and @ are %2F %3F %23 %5B and %40"
        raise ConfigError("the database's URL cannot be read: its parts are not where they belong", hint=hint, where=SETTING) from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        hint = f"check user, password and database in its URL ({SETTING}); a database of its own is made with createdb"
        raise ConfigError(f"the database at {_place(dsn)} refuses us: {error}", hint=hint, where=SETTING) from error
    except asyncpg.InsufficientPrivilegeError as error:
        hint = (
            "its user makes the schema `headway` (grant create on database DATABASE to USER), or owns it and all that is in it: "
            "servers and `headway db migrate` use the same one"
        )
        raise ConfigError(f"the database at {_place(dsn)} refuses us: {error}", hint=hint, where=SETTING) from error
    except asyncpg.RaiseError as error:
        hint = "a trigger or a rule in this database said so: its DBA knows why"
        raise ConfigError(f"the database at {_place(dsn)} refuses us: {error}", hint=hint, where=SETTING) from error
    except POOLED as error:
        raise ConfigError(pooled(dsn), hint=SESSION_MODE, where=SETTING) from error
    except asyncpg.TooManyConnectionsError as error:
        hint = "end what uses them, or raise max_connections, or the limit of the role or the database"
        raise Unavailable(f"the database at {_place(dsn)} gives us no connection: {error}", hint=hint) from error
    except asyncpg.TargetServerAttributeNotMatched as error:
        hint = "name the primary, or all its hosts, in the URL (HOST:PORT,HOST:PORT); else let the role write again"
        raise Unavailable(f"the database at {_place(dsn)} cannot be used: {reason(error)}", hint=hint) from error
    except AWAY as error:
        if missing := _missing_file(dsn):
            raise ConfigError(f"{missing} in the database's URL names a file that is not there", where=SETTING) from error
        hint = f"does it run, and is its URL right ({SETTING})?"
        raise Unavailable(f"the database at {_place(dsn)} does not answer: {reason(error)}", hint=hint) from error


def reason(error: BaseException) -> str:
    """Why it cannot be used, in a few words."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return _READ_ONLY
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _missing_file(dsn: str) -> str:
    """The driver does not say which."""
    asked = parse_qs(urlsplit(dsn).query)
    return next((f"{key}={asked[key][0]}" for key in FILES if key in asked and not os.path.exists(asked[key][0])), "")


def pooled(dsn: str) -> str:
    return f"the database at {_place(dsn)} is behind a pooler that gives every transaction another session"


def _place(dsn: str) -> str:
    """Host and port, or the folder of its socket."""
    parts = urlsplit(dsn)
    folder = parse_qs(parts.query).get("host")
    if folder and not parts.hostname:
        return folder[0]
    return (parts.netloc.rpartition("@")[2]) or "this machine"

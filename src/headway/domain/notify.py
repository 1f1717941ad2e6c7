"""Whom a task wants told: addresses or names of webhooks, each with the events it asks for (A1 J6)."""

from __future__ import annotations

import re

import msgspec

from headway.domain.events import FINISHED, kinds_of
from headway.errors import InvalidInput

URL_LIMIT = 2000
MOST = 10  # targets of one task
_NAME = re.compile(r"[\w][\w.\-]{0,99}")
_URL = re.compile(
    r"https?://(?P<user>[^/?#@]*@)?(?P<host>[A-Za-z0-9.\-_]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?(?P<path>[/?][\x21-\x22\x24-\x7e]*)?"
)


class NotifySpec(msgspec.Struct, forbid_unknown_fields=True):
    """{to: https://example.com/hook, events: [failed, killed]}."""

    to: str
    events: list[str] = msgspec.field(default_factory=lambda: ["finished"])


class Notify(msgspec.Struct, frozen=True, omit_defaults=True):
    """`to` is an address, or the name of one of the tenant's webhooks."""

    to: str
    kinds: tuple[str, ...] = FINISHED


def targets(asked: str | list[str | NotifySpec], field: str = "notify") -> tuple[Notify, ...]:
    """The checked form of `notify`."""
    listed = [asked] if isinstance(asked, str) else asked
    if len(listed) > MOST:
        raise InvalidInput(f"{field}: {len(listed)} targets are too many", field=field, hint=f"at most {MOST}")
    found: dict[str, Notify] = {}
    for item in listed:
        spec = NotifySpec(item) if isinstance(item, str) else item
        target = Notify(_target(spec.to, field), kinds_of(spec.events, f"{field}.events"))
        if target.to in found:
            raise InvalidInput(f"{field}: {target.to[:60]!r} is named twice", field=field)
        found[target.to] = target
    return tuple(found.values())


def is_address(to: str) -> bool:
    return "://" in to


def check_name(name: str, field: str = "name") -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{field}: {name[:40]!r} is not a name", field=field, hint="letters, digits, dots and dashes, 100 at most"
        )
    return name


def check_url(url: str, field: str = "url") -> str:
    """An address a webhook may have; whether it may be reached is decided when it is used."""
    found = _URL.fullmatch(url)
    if found is None or len(url) > URL_LIMIT or int(found["port"] or 1) not in range(1, 65536):
        raise InvalidInput(f"{field}: {url[:60]!r} is not a web address", field=field, hint="write https://HOST/PATH")
    if found["user"] is not None:
        raise InvalidInput(f"{field}: an address with a user is not allowed", field=field, hint="messages are signed instead")
    return url


def _target(to: str, field: str) -> str:
    if is_address(to):
        return check_url(to, field)
    if not _NAME.fullmatch(to):
        raise InvalidInput(
            f"{field}: {to[:60]!r} is neither an address nor the name of a webhook",
            field=field,
            hint="write https://HOST/PATH, or a name that `headway webhook ls` shows",
        )
    return to

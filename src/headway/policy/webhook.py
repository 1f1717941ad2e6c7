"""Webhooks: where they may go, how messages are signed, when they are tried again (J6).

Signatures follow Standard Webhooks: HMAC-SHA256 over "id.timestamp.body", base64, with the prefix v1. While a secret is being
changed, both sign, and a receiver accepts either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence

from headway.domain.addresses import Network, of_the_node, reached
from headway.errors import InvalidInput

PREFIX = "whsec_"
# Seconds before each further try: about a day in all.
DELAYS_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 28800.0)
LONGEST_WAIT_S = 3600.0  # what a receiver may ask for
JITTER = 0.2
# Addresses that some versions of the library believe to be public and that are not.
_SPECIAL = tuple(
    ipaddress.ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20", "5f00::/16", "fec0::/10")
)


def networks(text: str, field: str = "webhook_networks") -> tuple[Network, ...]:
    """ "10.0.0.0/8, 127.0.0.1" as networks."""
    found: list[Network] = []
    for part in text.replace(",", " ").split():
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError:
            raise InvalidInput(f"{field}: {part!r} is not a network", field=field, hint="write 10.0.0.0/8, separated by commas") from None
    return tuple(found)


def refused(address: str, allowed: Sequence[Network]) -> str | None:
    """Why a webhook may not connect to this address; None when it may."""
    try:
        found = reached(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return f"{address[:60]!r} is not an address"
    if any(found.version == network.version and found in network for network in allowed):
        return None
    inside = any(found.version == network.version and found in network for network in _SPECIAL)
    if not found.is_global or found.is_reserved or of_the_node(found) or inside:
        return f"{found} is not a public address"
    return None


def new_secret(luck: bytes) -> str:
    """A secret from random bytes."""
    return PREFIX + base64.b64encode(luck).decode()


def check_secret(secret: str) -> str:
    """A secret that a user brings along."""
    try:
        size = len(base64.b64decode(secret.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if not secret.startswith(PREFIX) or not 24 <= size <= 64:
        raise InvalidInput("secret: it is not valid", field="secret", hint=f"{PREFIX} and the base64 of 24 to 64 random bytes")
    return secret


def signature(message: str, timestamp: int, body: bytes, secrets: Iterable[str]) -> str:
    """The header `webhook-signature`: one signature for each secret that is valid now."""
    content = f"{message}.{timestamp}.".encode() + body
    keys = (base64.b64decode(secret.removeprefix(PREFIX)) for secret in secrets)
    return " ".join("v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys)


def next_try(attempts: int, status: int | None, *, wait_s: float | None, luck: float) -> float | None:
    """Seconds until the next try after so many that failed; None: give up. `wait_s` is what the receiver asked for."""
    if status == 410 or attempts > len(DELAYS_S):  # 410: it does not want any more
        return None
    delay = DELAYS_S[max(attempts, 1) - 1] * (1 + JITTER * luck)
    return max(delay, min(wait_s or 0.0, LONGEST_WAIT_S))

"""How far a task is kept away from its node and its neighbours (H11), and what of the network it may reach.

`none` runs as the agent's own user; `sandbox` in namespaces of its own; `container` in an image. The tenant's subscription sets the least
level and the network it may ask for. A task that says nothing gets the least level and no network.
"""

from __future__ import annotations

import difflib
import fnmatch
import ipaddress
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headway.domain.addresses import Address, of_the_node
from headway.errors import InvalidInput

if TYPE_CHECKING:
    from headway.domain.task import Definition

LEVELS = ("none", "sandbox", "container")  # each holds what the one before it holds; its name is the label of nodes that have it
EVERYTHING = "all"
ISOLATED = "@"  # in a runner's kind: after it stand its tenant, and what it may reach
GRANTS = 64
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def check_level(asked: str | None) -> str:
    """The level as it is kept: empty for what nobody said."""
    if asked is None or asked in LEVELS:
        return asked or ""
    near = difflib.get_close_matches(asked, LEVELS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else ", ".join(LEVELS)
    raise InvalidInput(f"isolation: {asked[:40]!r} is unknown", field="isolation", hint=hint)


def check_network(asked: str | list[str] | None) -> tuple[str, ...]:
    """`none`, `all`, or a list of HOST:PORT."""
    if asked is None or asked == "none" or asked == []:
        return ()
    words = [asked] if isinstance(asked, str) else asked
    if words == [EVERYTHING]:
        return (EVERYTHING,)
    if len(words) > GRANTS:
        raise InvalidInput(f"network: {len(words)} places are too many", field="network", hint=f"at most {GRANTS}")
    for number, word in enumerate(words):
        if place(word) is None:
            field = f"network[{number}]" if isinstance(asked, list) else "network"
            raise InvalidInput(
                f"{field}: {word[:80]!r} is not a place", field=field, hint='none, all, or a list such as ["db.internal:5432"]'
            )
    return tuple(dict.fromkeys(words))


def place(word: str) -> tuple[str, int] | None:
    """HOST:PORT as a pair; an IPv6 address stands in brackets. None when it is neither."""
    host, colon, port = word.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or len(port) > 5:
        return None
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), int(port)
        except ValueError:
            return None
    return (host.lower(), int(port)) if _HOST.fullmatch(host) else None


def covers(allowed: Sequence[str], asked: str) -> bool:
    """Whether a tenant's list (`all`, `*`, `*.example.org:443`, `10.0.0.0/8:5432`, `db:*`) has this place in it.

    Addresses of the node itself and of the metadata service only when they, or a network of such, are written in it.
    """
    if EVERYTHING in allowed or "*" in allowed:
        return True
    found = place(asked)
    if found is None:
        return False
    host, port = found
    address = _address(host)
    near = address is not None and of_the_node(address)
    for pattern in allowed:
        hosts, _, ports = pattern.rpartition(":")
        hosts = hosts.lower().strip("[]")
        if ports not in ("*", str(port)):
            continue
        if "/" in hosts:
            if address is not None and _inside(address, hosts, near=near):
                return True
        elif (address is not None and _address(hosts) == address) or (not near and fnmatch.fnmatchcase(host, hosts)):
            return True
    return False


def _inside(address: Address, network: str, *, near: bool) -> bool:
    try:
        there = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
    return address in there and (not near or of_the_node(there))


def _address(host: str) -> Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def runner_kind(kind: str, definition: Definition) -> str:
    """The kind of runner that may call it: warm runners of an isolated tenant are shared only by what sees and reaches the same."""
    if not kind or definition.isolation != "sandbox":
        return kind
    return f"{kind}{ISOLATED}{definition.tenant}:{','.join(definition.network)}:{','.join(definition.content.volumes)}"


def owner_of(kind: str) -> str:
    """Whose a kind of runner is: all kinds of an isolated tenant are his, any other is nobody's but its own."""
    _, isolated, tenant = kind.partition(ISOLATED)
    return isolated + tenant.partition(":")[0] if isolated else kind


def through_door(definition: Definition) -> bool:
    """Whether it reaches the server only by the socket in its sandbox: it has no network of the node."""
    return definition.isolation == "sandbox" and definition.network != (EVERYTHING,)


def confine(definition: Definition, tenant: int, *, least: str = "none", allowed: Sequence[str] = (EVERYTHING,)) -> Definition:
    """The definition as this tenant may run it: at least at its level, with no more network than it was granted."""
    level = definition.isolation or ("container" if definition.content.image else least)
    if (level == "container") != bool(definition.content.image):
        raise InvalidInput(
            f"isolation: {level!r} does not go with {'an image' if definition.content.image else 'a task without an image'}",
            field="isolation",
            hint="leave it out, or write container" if definition.content.image else "add image, or write sandbox",
        )
    if level == "container" and definition.network not in ((), (EVERYTHING,)):
        raise InvalidInput("network: a container has none or all of it", field="network", hint="none or all")
    if LEVELS.index(level) < LEVELS.index(least):
        raise InvalidInput(
            f"isolation: {level!r} is less than your subscription asks for",
            field="isolation",
            hint=f"{' or '.join(LEVELS[LEVELS.index(least) :])}; or leave it out",
        )
    if level == "none":
        if definition.network not in ((), (EVERYTHING,)):
            raise InvalidInput(
                "network: single places can be granted only to an isolated task", field="network", hint="add isolation: sandbox"
            )
        whose = tenant if definition.content.logger.startswith("file:") else 0  # its file is its tenant's
        if (definition.isolation, definition.tenant) == ("", whose):
            return definition
        return msgspec.structs.replace(definition, isolation="", tenant=whose)
    for word in definition.network:
        if not covers(allowed, word):
            raise InvalidInput(
                f"network: {word} is not granted to you",
                field="network",
                hint=f"your subscription grants {', '.join(allowed) or 'no network'}",
            )
    needs = dict(definition.resources.labels)
    needs.setdefault(level, "")
    resources = msgspec.structs.replace(definition.resources, labels=tuple(sorted(needs.items())))
    return msgspec.structs.replace(definition, isolation=level, tenant=tenant, resources=resources)

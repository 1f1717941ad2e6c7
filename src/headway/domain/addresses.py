"""What addresses of the Internet stand for: the one that is really reached, and the node itself with what tells its secrets (H11 J6)."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_NODE_4 = (
    "127.0.0.0/8", "0.0.0.0/32", "224.0.0.0/4", "169.254.0.0/16",
    "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32",  # where some clouds tell a machine about itself
)  # fmt: skip
_NODE_6 = (
    "::1/128", "::/128", "ff00::/8", "fe80::/10",
    "fd00:ec2::254/128",
    "64:ff9b:1::/48",  # translation by the local network's own rules: where in it the address of version 4 is, only they tell
)  # fmt: skip


def _written_as_6(network: ipaddress.IPv4Network) -> tuple[ipaddress.IPv6Network, ...]:
    """The same places as addresses of version 6: mapped, translated, and 6to4."""
    first, length = int(network.network_address), network.prefixlen
    return (
        ipaddress.IPv6Network(((0xFFFF << 32) | first, 96 + length)),
        ipaddress.IPv6Network((int(_TRANSLATED.network_address) | first, 96 + length)),
        ipaddress.IPv6Network(((0x2002 << 112) | (first << 80), 16 + length)),
    )


# The node itself, and the places where clouds tell its secrets: whoever means the world does not mean these.
OF_THE_NODE: tuple[Network, ...] = (
    *map(ipaddress.IPv4Network, _NODE_4),
    *map(ipaddress.IPv6Network, _NODE_6),
    *(written for text in _NODE_4 for written in _written_as_6(ipaddress.IPv4Network(text))),
)


def of_the_node(where: Address | Network) -> bool:
    """Whether an address, or all of a network, is the node's own or one that tells its secrets."""
    if isinstance(where, ipaddress.IPv4Network | ipaddress.IPv6Network):
        first, last = where.network_address, where.broadcast_address
    else:
        first = last = where
    return any(first in known and last in known for known in OF_THE_NODE)


def reached(address: Address) -> Address:
    """The address of version 4 inside one of version 6, if it leads there; otherwise itself."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return inner
    return address

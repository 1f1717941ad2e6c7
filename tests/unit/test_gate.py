"""Where the gate of a sandbox goes: to what was granted, and by a name never to the node itself (H11)."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headway.agent import gate
from headway.domain.addresses import OF_THE_NODE

NEAR = [
    "127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::1", "::", "fe80::1%1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1", "2002:7f00:1::1", "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::", "fd00:ec2::254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "::ffff:100.100.100.200",
]  # fmt: skip


def resolved(monkeypatch: pytest.MonkeyPatch, host: str, *addresses: str) -> list[str]:
    async def answer(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(socket.AF_UNSPEC, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]

    async def ask() -> list[str]:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answer, raising=False)
        return await gate.resolve(host, 80, list(OF_THE_NODE))

    return asyncio.run(ask())


@pytest.mark.parametrize("near", NEAR)
def test_a_name_never_leads_to_the_node_itself_nor_to_its_metadata(monkeypatch: pytest.MonkeyPatch, near: str) -> None:
    """However the address is written: one of version 4 can be said in version 6, and the kernel connects to it all the same."""
    assert resolved(monkeypatch, "evil.example", near, "192.0.2.7", near, "2001:db8::7") == ["192.0.2.7", "2001:db8::7"]
    assert resolved(monkeypatch, "evil.example", near) == []


def test_an_address_that_was_granted_itself_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved(monkeypatch, "127.0.0.1", "127.0.0.1") == ["127.0.0.1"]
    assert resolved(monkeypatch, "::1", "::1") == ["::1"]

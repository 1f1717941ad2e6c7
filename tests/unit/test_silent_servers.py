"""A server that went silent may have told its agents to hold on: when is it known to be dead?"""

from __future__ import annotations

import asyncio
import socket

import pytest

from headway.control.reaper import may_live

HERE, ELSEWHERE = socket.gethostname(), "another-machine"


async def test_one_on_this_machine_is_dead_when_nobody_listens_or_we_do() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listening = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    assert await may_live(HERE, url, "http://127.0.0.1:1")
    assert not await may_live(HERE, url, url)
    listening.close()
    await listening.wait_closed()
    assert not await may_live(HERE, url, "http://127.0.0.1:1")


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "[::]", "[::1]", "localhost"])
async def test_an_address_that_every_machine_has_says_nothing_of_a_server_on_another(host: str) -> None:
    """Two servers with `--host 0.0.0.0`, as the docs say: the second took the first for itself, and its tasks ran twice at once."""
    url = f"http://{host}:8470"
    assert await may_live(ELSEWHERE, url, url)
    assert await may_live(ELSEWHERE, f"http://{host}:1", url)

"""The HTTP client against a real server that may answer anything."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.version import VERSION
from headway.wire.http import STREAM_BUFFER, Http, NotSent, Stale
from tests.support.scripted_http import Request, reply, serving


async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(200, request.body or request.path.encode()))


async def test_requests_one_after_another_share_one_connection() -> None:
    async with serving(echo) as server:
        http = Http(server.url)
        answers = [await http.request("POST", "/v1/tasks", body=str(i).encode()) for i in range(5)]
        await http.close()
    assert [a.body for a in answers] == [b"0", b"1", b"2", b"3", b"4"]
    assert {r.connection for r in server.requests} == {1}


async def test_every_request_says_who_asks_and_which_protocol_it_speaks() -> None:
    async with serving(echo) as server:
        http = Http(server.url, token="hw_admin_x")
        await http.request("POST", "/x", body=b"{}", headers={"idempotency-key": "k"})
        await http.close()
    headers = server.requests[0].headers
    assert headers["authorization"] == "Bearer hw_admin_x"
    assert headers["headway-protocol"] == "1"
    assert headers["user-agent"] == f"headway/{VERSION}"
    assert headers["content-type"] == "application/json"
    assert headers["idempotency-key"] == "k"


async def test_concurrent_requests_use_connections_of_their_own_up_to_the_limit() -> None:
    release = asyncio.Event()
    arrived: asyncio.Queue[str] = asyncio.Queue()

    async def held(request: Request, writer: asyncio.StreamWriter) -> None:
        arrived.put_nowait(request.path)
        await release.wait()
        writer.write(reply(200, request.path.encode()))

    async with serving(held) as server:
        http = Http(server.url, limit=3)
        asked = [asyncio.create_task(http.request("GET", f"/{i}")) for i in range(8)]
        for _ in range(3):
            await arrived.get()
        assert server.connections == 3
        assert arrived.empty()
        release.set()
        assert [a.body for a in await asyncio.gather(*asked)] == [f"/{i}".encode() for i in range(8)]
        await http.close()
    assert server.connections == 3


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_chunked_body_is_put_together_however_it_is_cut(step: int) -> None:
    message = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n8\r\n, chunks\r\n0\r\n\r\n"

    async def chunked(request: Request, writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(message), step):
            writer.write(message[at : at + step])
            await writer.drain()

    async with serving(chunked) as server:
        http = Http(server.url)
        for _ in range(2):  # the second proves that the connection is left clean
            assert (await http.request("GET", "/")).body == b"hello, chunks"
        await http.close()
    assert server.connections == 1


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async def until_closed(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        await writer.drain()
        writer.close()

    async with serving(until_closed) as server:
        http = Http(server.url)
        assert (await http.request("GET", "/")).body == b"all of it"
        assert (await http.request("GET", "/")).body == b"all of it"
        await http.close()
    assert server.connections == 2


async def test_a_torn_answer_is_a_connection_error() -> None:
    async def torn(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this")
        await writer.drain()
        writer.close()

    async with serving(torn) as server:
        http = Http(server.url)
        with pytest.raises(ConnectionError, match="before the answer did"):
            await http.request("GET", "/")
        await http.close()
    assert len(server.requests) == 1


async def test_an_answer_that_is_not_http_is_a_connection_error() -> None:
    async def nonsense(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")

    async with serving(nonsense) as server:
        http = Http(server.url)
        with pytest.raises(ConnectionError, match=r"not HTTP/1\.1"):
            await http.request("GET", "/")
        await http.close()


async def test_an_interim_answer_is_not_the_answer() -> None:
    async def early_hints(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + reply(200, b"final"))

    async with serving(early_hints) as server:
        http = Http(server.url)
        answer = await http.request("GET", "/")
        await http.close()
    assert (answer.status, answer.body) == (200, b"final")
    assert "link" not in answer.headers


def dying_on_second_use() -> tuple[list[int], object]:
    seen: list[int] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        seen.append(request.connection)
        if len(seen) == 2:
            writer.close()  # the request was read, whether it was acted upon is anybody's guess
            return
        writer.write(reply(200, b"ok"))

    return seen, answer


async def test_a_dead_kept_alive_connection_is_retried_once_when_that_is_harmless() -> None:
    seen, answer = dying_on_second_use()
    async with serving(answer) as server:  # type: ignore[arg-type]
        http = Http(server.url)
        await http.request("GET", "/")
        assert (await http.request("POST", "/", body=b"{}", idempotent=True)).body == b"ok"
        await http.close()
    assert seen == [1, 1, 2]


async def test_a_dead_kept_alive_connection_is_not_retried_when_that_could_do_it_twice() -> None:
    seen, answer = dying_on_second_use()
    async with serving(answer) as server:  # type: ignore[arg-type]
        http = Http(server.url)
        await http.request("GET", "/")
        with pytest.raises(Stale):
            await http.request("POST", "/", body=b"{}")
        await http.close()
    assert seen == [1, 1]


async def test_a_connection_the_server_closed_while_idle_is_replaced() -> None:
    async with serving(echo) as server:
        http = Http(server.url)
        await http.request("POST", "/", body=b"1")
        await server.drop_connections()
        await asyncio.wait_for(asyncio.gather(*(c.closed for c in http._open)), 60)
        assert (await http.request("POST", "/", body=b"2")).body == b"2"
        await http.close()
    assert [r.connection for r in server.requests] == [1, 2]


async def test_nobody_listening_means_that_nothing_was_sent() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        http = Http(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(NotSent):
            await http.request("POST", "/", body=b"{}")


async def test_a_timed_out_request_takes_its_connection_with_it() -> None:
    async def slow_first(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/slow":
            await asyncio.Event().wait()
        writer.write(reply(200, b"prompt"))

    async with serving(slow_first) as server:
        http = Http(server.url)
        await http.request("GET", "/")  # the connection is there: what takes long is the answer
        with pytest.raises(TimeoutError, match="/slow"):
            await http.request("GET", "/slow", timeout=0.05)
        assert (await http.request("GET", "/")).body == b"prompt"
        await http.close()
    assert server.requests[-1].connection == 2


async def test_a_stream_gives_each_piece_when_it_comes() -> None:
    step = asyncio.Event()

    async def pieces(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await step.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with serving(pieces) as server:
        http = Http(server.url)
        async with http.stream("GET", "/v1/events") as (head, body):
            assert head.status == 200
            assert await anext(body) == b"one"
            step.set()
            assert [piece async for piece in body] == [b"two"]
        await http.close()


async def test_a_stream_that_breaks_says_so_after_what_had_come() -> None:
    async def broken(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await writer.drain()
        writer.close()

    async with serving(broken) as server:
        http = Http(server.url)
        got = []
        async with http.stream("GET", "/") as (_, body):
            got.append(await anext(body))
            with pytest.raises(ConnectionError):
                await anext(body)
        await http.close()
    assert got == [b"one"]


def test_a_loop_that_ends_while_a_stream_is_half_read_has_nothing_to_complain_about() -> None:
    complaints: list[dict[str, Any]] = []
    left: list[AsyncIterator[bytes]] = []  # as the traceback of an error holds on to it, when `| head` has read enough

    async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")

    async def pieces(http: Http) -> AsyncIterator[bytes]:
        async with http.stream("GET", "/") as (_, body):
            async for piece in body:
                yield piece

    async def read_one() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with serving(endless) as server:
            http = Http(server.url)
            left.append(pieces(http))
            assert await anext(left[0]) == b"one"
            await http.close()

    asyncio.run(read_one())
    assert not complaints


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("nowhere.pem", "empty.pem"):
        with pytest.raises(ConfigError, match=name):
            Http("https://127.0.0.1:1", tls_ca=str(tmp_path / name))


async def test_a_slow_reader_slows_the_stream_down_and_gets_all_of_it() -> None:
    total, piece = 512, b"x" * 65536

    async def flood(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/ping":
            writer.write(reply(200))
            return
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {total * len(piece)}\r\n\r\n".encode())
        for _ in range(total):
            writer.write(piece)
            await writer.drain()

    async with serving(flood) as server:
        http = Http(server.url)
        async with http.stream("GET", "/") as (_, body):
            got = len(await anext(body))
            for _ in range(300):  # enough turns of the loop to read everything, were nothing to stop it
                await http.request("GET", "/ping")
            one_read = 256 * 1024  # is the most that asyncio hands over at once
            assert max(connection._unread for connection in http._open) <= STREAM_BUFFER + one_read
            async for part in body:
                got += len(part)
        await http.close()
    assert got == total * len(piece)


async def test_close_ends_requests_under_way() -> None:
    arrived = asyncio.Event()

    async def never(request: Request, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.Event().wait()

    async with serving(never) as server:
        http = Http(server.url)
        asked = asyncio.create_task(http.request("GET", "/"))
        await arrived.wait()
        await http.close()
        with pytest.raises(ConnectionError):
            await asked


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "tasks", "/é"])
async def test_a_path_cannot_smuggle_a_header(path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        await Http("http://127.0.0.1:1").request("GET", path)


def test_a_token_cannot_smuggle_a_header() -> None:
    with pytest.raises(ValueError, match="authorization"):
        Http("http://127.0.0.1:1", token="x\r\ny: z")


@pytest.mark.parametrize("url", ["127.0.0.1:8470", "ftp://x", "http://"])
def test_what_is_not_an_http_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        Http(url)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    target = tmp_path / "server.pem"
    subprocess.run(
        (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test "
            f"-addext subjectAltName=IP:127.0.0.1 -keyout {target} -out {tmp_path}/c"
        ).split(),
        check=True,
        capture_output=True,
    )
    target.write_text(target.read_text() + (tmp_path / "c").read_text())
    return target


async def test_tls_trusts_the_given_authority_and_no_other(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with serving(echo, tls=context) as server:
        trusting, distrusting = Http(server.url, tls_ca=str(certificate)), Http(server.url)
        assert (await trusting.request("POST", "/", body=b"secret")).body == b"secret"
        with pytest.raises(NotSent, match="certificate"):
            await distrusting.request("GET", "/")
        await trusting.close()
    assert len(server.requests) == 1

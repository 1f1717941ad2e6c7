"""Granted network: a sandbox reaches the places it was granted, and nothing else (H11).

The agent runs in a network namespace that the test made, with the metadata address on that namespace's own loopback.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.lifecycle import Outcome
from tests.support.confined import ROOM, confining, need_sandbox, python
from tests.support.scripted_server import ScriptedServer

SERVE = """
import socket, sys, threading
def serve(address, port):
    with socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listening:
        while True:
            connection, _ = listening.accept()
            connection.sendall(connection.recv(100) + b" from " + address.encode()); connection.close()
for address, port in (("127.0.0.1", 7001), ("10.7.7.7", 7001), ("10.7.7.7", 7002), ("169.254.169.254", 80), ("fd07::7", 7001)):
    threading.Thread(target=serve, args=(address, port)).start()
print("ready", flush=True)
"""
TRY = """
import socket, sys
for word in sys.argv[1:]:
    host, _, port = word.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as there:
            there.sendall(b"hello"); print(word, there.recv(100).decode() or "closed")
    except OSError as error: print(word, "no")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    """An agent and some services, all in this test process's own new network namespace."""
    need_sandbox(tmp_path_factory.mktemp("probe"))
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network namespace needs root and the program ip")
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    os_unshare_network()
    try:
        added = ("10.7.7.7/32", "169.254.169.254/32", "fd07::7/128")
        for words in ("link set lo up", *(f"addr add {address} dev lo" for address in added)):
            subprocess.run(["ip", *words.split()], check=True)
        services = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE)
        assert services.stdout is not None
        services.stdout.readline()
        with confining(tmp_path_factory.mktemp("agent"), paths=[str(Path(__file__).parent)]) as (running, _):
            yield running
        services.send_signal(signal.SIGKILL)
        services.wait()
    finally:
        set_network(before)
        os.close(before)


def os_unshare_network() -> None:
    import ctypes

    assert ctypes.CDLL(None).unshare(0x4000_0000) == 0


def set_network(fd: int) -> None:
    import ctypes

    assert ctypes.CDLL(None).setns(fd, 0x4000_0000) == 0


def tried(server: ScriptedServer, network: tuple[str, ...], *places: str) -> dict[str, str]:
    command = (*python(TRY), *places)
    ref = server.run(server.define(command=command, isolation="sandbox", network=network, resources=ROOM))
    assert server.outcome(ref) is Outcome.SUCCEEDED, (server.error(ref), server.text(ref, 2))
    return dict(line.split(" ", 1) for line in server.text(ref).splitlines())


def test_without_a_grant_nothing_is_reached_not_even_the_metadata_address(server: ScriptedServer) -> None:
    places = ("127.0.0.1:7001", "10.7.7.7:7001", "169.254.169.254:80")
    assert tried(server, (), *places) == dict.fromkeys(places, "no")


def test_a_granted_place_is_reached_and_no_other_port_or_address(server: ScriptedServer) -> None:
    found = tried(server, ("10.7.7.7:7001",), "10.7.7.7:7001", "10.7.7.7:7002", "169.254.169.254:80", "127.0.0.1:7001")
    assert found == {
        "10.7.7.7:7001": "hello from 10.7.7.7",
        "10.7.7.7:7002": "no",
        "169.254.169.254:80": "no",
        "127.0.0.1:7001": "no",
    }


def test_an_address_of_version_6_can_be_granted_too(server: ScriptedServer) -> None:
    found = tried(server, ("[fd07::7]:7001",), "[fd07::7]:7001", "[fd07::7]:7002", "10.7.7.7:7001")
    assert found == {"[fd07::7]:7001": "hello from fd07::7", "[fd07::7]:7002": "no", "10.7.7.7:7001": "no"}


def test_a_name_that_leads_to_the_node_itself_is_refused(server: ScriptedServer) -> None:
    found = tried(server, ("localhost:7001",), "localhost:7001")
    assert found["localhost:7001"] in ("no", "closed")


def test_everything_is_the_network_of_the_node(server: ScriptedServer) -> None:
    assert tried(server, ("all",), "10.7.7.7:7002")["10.7.7.7:7002"] == "hello from 10.7.7.7"


def test_a_function_reaches_what_was_granted_too(server: ScriptedServer) -> None:
    for network, expected in ((("10.7.7.7:7001",), b'"reached"'), (("10.7.7.7:7002",), b'"no"')):
        definition = server.define(
            function="hostile_functions:reach", isolation="sandbox", tenant=7, network=network, resources=ROOM
        )
        ref = server.run(definition, [7001, "10.7.7.7"])
        assert server.finished[ref].result == expected, server.error(ref)


def test_exit_code_and_end_pass_through_the_gate(server: ScriptedServer, tmp_path: Path) -> None:
    ref = server.run(
        server.define(command=("/bin/sh", "-c", "exit 7"), isolation="sandbox", network=("10.7.7.7:7001",), resources=ROOM)
    )
    assert server.finished[ref].exit_code == 7
    trap = "trap 'echo warned; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    ref = server.order(
        server.define(command=("/bin/sh", "-c", trap), isolation="sandbox", network=("10.7.7.7:7001",), resources=ROOM)
    )
    server.wait(lambda: "ready" in server.text(ref))
    server.cancel(ref)
    server.wait(lambda: ref in server.finished)
    assert "warned" in server.text(ref)

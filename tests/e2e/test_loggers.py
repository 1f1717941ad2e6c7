"""`logger:`: the output of a task also goes where its owner wants it (H9)."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from tests.support.agents import running_agent, until
from tests.support.scripted_server import ScriptedServer


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loggers")


@pytest.fixture(scope="module")
def heard(folder: Path) -> Iterator[dict[str, socket.socket]]:
    """Sockets where syslog and journald would be."""
    found = {}
    for name in ("syslog", "journald"):
        found[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        found[name].bind(str(folder / name))
        found[name].settimeout(120)
    yield found
    for one in found.values():
        one.close()


@pytest.fixture(scope="module", autouse=True)
def agent(server: ScriptedServer, folder: Path, heard: dict[str, socket.socket]) -> Iterator[None]:
    settings = {"syslog": str(folder / "syslog"), "journald": str(folder / "journald"), "log_dir": str(folder / "logs")}
    with running_agent(folder / "agent", server.url, fetch_hosts=["127.0.0.1"], **settings):
        yield


def say(server: ScriptedServer, logger: str, text: str) -> tuple[int, int]:
    ref = server.run(server.define(name="speaker", command=("/bin/sh", "-c", text), content=Content(logger=logger)))
    assert server.outcome(ref) is Outcome.SUCCEEDED
    return ref


def test_lines_go_to_syslog(server: ScriptedServer, heard: dict[str, socket.socket]) -> None:
    ref = say(server, "syslog", "echo one; echo two >&2")
    lines = sorted(heard["syslog"].recv(65536).decode() for _ in range(2))
    assert lines[0].startswith("<11>")
    assert lines[0].endswith(f"headway/speaker[{ref[0]}]: two")
    assert lines[1].startswith("<14>")
    assert server.text(ref) == "one\n"  # and Headway keeps them as ever


def test_lines_go_to_journald(server: ScriptedServer, heard: dict[str, socket.socket]) -> None:
    ref = say(server, "journald", "echo to the journal")
    fields = dict(line.split("=", 1) for line in heard["journald"].recv(65536).decode().splitlines())
    assert (fields["MESSAGE"], fields["HEADWAY_TASK"], fields["PRIORITY"]) == ("to the journal", str(ref[0]), "6")


def test_lines_go_to_a_file_of_the_operators_folder_and_nowhere_else(server: ScriptedServer, folder: Path) -> None:
    ref = say(server, "file:team/report.log", "printf 'first\\nno end'")
    path = folder / "logs" / "team" / "report.log"
    until(path.exists)
    until(lambda: " stdout first\n" in path.read_text())
    assert f" {ref[0]}/1 stdout first\n" in path.read_text()
    say(server, "file:a/./b/report", "echo x")
    until((folder / "logs" / "a" / "b" / "report").exists)


def test_lines_go_to_a_web_address(server: ScriptedServer) -> None:
    bodies: list[bytes] = []

    class Sink(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink) as sink:
        threading.Thread(target=sink.serve_forever, daemon=True).start()
        ref = say(server, f"http://127.0.0.1:{sink.server_address[1]}/lines", "for i in 1 2 3; do echo line $i; done")
        until(lambda: b"line 3" in b"".join(bodies))
        sink.shutdown()
    lines = [json.loads(line) for line in b"".join(bodies).splitlines()]
    assert [line["text"] for line in lines] == ["line 1", "line 2", "line 3"]
    assert {line["task"] for line in lines} == {str(ref[0])}


def test_a_destination_that_is_down_holds_up_nobody(server: ScriptedServer) -> None:
    ref = say(server, "http://127.0.0.1:9/nobody", "yes | head -n 20000; echo the end")
    assert server.text(ref).endswith("the end\n")

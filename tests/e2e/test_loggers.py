"""`logger:`: the output of a task also goes where its owner wants it (H9)."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from tests.support.agents import running_agent
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until


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
    path = folder / "logs" / "tenant-0" / "team" / "report.log"
    until(path.exists)
    until(lambda: " stdout no end\n" in path.read_text())  # when the task has ended, so has its last line
    assert f" {ref[0]}/1 stdout first\n" in path.read_text()
    say(server, "file:a/./b/report", "echo x")
    until((folder / "logs" / "tenant-0" / "a" / "b" / "report").exists)


class Sink:
    """A web server that keeps the lines posted to it, and answers with a status. It refuses connections until it is entered."""

    def __init__(self, status: int = 204) -> None:
        self.lines: list[dict[str, Any]] = []
        kept = self.lines

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                kept.extend(json.loads(line) for line in body.splitlines())
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.server_bind()
        self.port = self._server.server_address[1]

    def __enter__(self) -> Sink:
        self._server.server_activate()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def complaints(server: ScriptedServer, ref: tuple[int, int]) -> list[str]:
    """What the owner reads about lines that did not arrive, once there is the number of them."""
    server.wait(lambda: "of this output did not reach the logger" in server.text(ref, 2))
    return [line for line in server.text(ref, 2).splitlines() if "[headway" in line]


def test_lines_go_to_a_web_address(server: ScriptedServer) -> None:
    with Sink() as sink:
        ref = say(server, f"http://127.0.0.1:{sink.port}/lines", "for i in 1 2 3; do echo line $i; done")
        until(lambda: len(sink.lines) >= 3)
    assert [line["text"] for line in sink.lines] == ["line 1", "line 2", "line 3"]
    assert {line["task"] for line in sink.lines} == {str(ref[0])}


def test_a_destination_that_is_down_holds_up_nobody_and_the_owner_reads_how_many_lines_it_missed(server: ScriptedServer) -> None:
    ref = say(server, "http://127.0.0.1:9/nobody?token=secret", "yes | head -n 20000; echo the end")
    assert server.text(ref).endswith("the end\n")
    said = complaints(server, ref)
    assert said[-1] == "[headway: 20001 lines of this output did not reach the logger http://127.0.0.1:9: Connection refused]"
    assert len(said) <= 2  # once while it wrote, and once with their number


def test_a_destination_that_is_back_gets_lines_again_and_is_told_what_it_missed(server: ScriptedServer) -> None:
    sink = Sink()
    where = f"http://127.0.0.1:{sink.port}/lines"
    assert "[headway: 2 lines" in complaints(server, say(server, where, "echo one; echo two"))[-1]
    with sink:
        until(lambda: say(server, where, "echo three") and sink.lines)
        assert "lines from" in sink.lines[0]["text"]
        assert "did not arrive here: Connection refused" in sink.lines[0]["text"]
        assert sink.lines[1]["text"] == "three"
        ref = say(server, where, "echo four")
        until(lambda: sink.lines[-1]["text"] == "four")
    assert server.text(ref, 2) == ""


def test_a_refusal_is_told_as_the_destination_said_it(server: ScriptedServer) -> None:
    with Sink(status=404) as sink:
        said = complaints(server, say(server, f"http://127.0.0.1:{sink.port}/nothing", "printf unfinished"))
    assert said == [f"[headway: 1 line of this output did not reach the logger http://127.0.0.1:{sink.port}: it answered 404 Not Found]"]
    assert len(sink.lines) == 1  # it was not asked again
    said = complaints(server, say(server, "http://localhost:9/x", "echo one"))
    assert said[-1].endswith("this node may not send to 'localhost'; the operator allows: 127.0.0.1 (setting fetch_hosts)]")


def test_a_task_that_goes_on_reads_it_while_it_runs(server: ScriptedServer, tmp_path: Path) -> None:
    script = f"until test -e {tmp_path}/enough; do echo line; sleep 0.1; done"
    definition = server.define(name="speaker", command=("/bin/sh", "-c", script), content=Content(logger="http://127.0.0.1:9/x"))
    ref = server.order(definition)
    server.wait(lambda: "[headway: lines do not reach the logger http://127.0.0.1:9: Connection refused]" in server.text(ref, 2))
    assert ref not in server.finished
    (tmp_path / "enough").touch()
    assert len(complaints(server, ref)) == 2


def test_without_a_syslog_the_owner_is_told(server: ScriptedServer, tmp_path: Path) -> None:
    with ScriptedServer() as other, running_agent(tmp_path, other.url, syslog=str(tmp_path / "nobody")):
        said = complaints(other, say(other, "syslog", "echo one; echo two; echo three"))
    assert said[-1] == "[headway: 3 lines of this output did not reach the logger syslog: No such file or directory]"

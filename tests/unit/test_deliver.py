"""Delivering lines to where a task's `logger` says: one who does not answer takes little from the others (H9)."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from headway.agent import deliver, destinations
from headway.agent.deliver import Deliverer


def test_a_destination_that_does_not_answer_is_asked_once_and_others_get_their_lines(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(destinations, "TIMEOUT_S", 1.5)
    said: list[list[Any]] = []
    deliverer = Deliverer(["/nowhere", "/nowhere", str(tmp_path), ["127.0.0.1"]], said.append)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}/lines"
        for number in range(3):
            deliverer.take([where, 7, 1, "name", 1, 0, b"line\n"])
            deliverer.take(["file:8/others", 8, 1, "name", 1, 0, b"%d\n" % number])
            deliverer.flush()
        deliverer.ended(where, (7, 1), 5, 0, 0)
        silent.setblocking(False)
        connections = 0
        while True:
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
            connections += 1
    assert connections == 1
    assert [line.rsplit(" ", 1)[1] for line in (tmp_path / "tenant-8" / "others").read_text().splitlines()] == ["0", "1", "2"]
    address = where.removesuffix("/lines")
    assert said == [
        ["down", address, "timed out"],
        ["lost", 7, 1, f"[headway: lines do not reach the logger {address}: timed out]"],
        ["ended", 7, 1, 5, f"[headway: 3 lines of this output did not reach the logger {address}: timed out]"],
    ]


def test_a_long_line_arrives_in_parts_and_one_without_an_end_with_the_end_of_its_task(tmp_path: Path) -> None:
    deliverer = Deliverer(["/nowhere", "/nowhere", str(tmp_path), []], lambda message: None)
    deliverer.take(["file:7/log", 7, 1, "name", 1, 0, b"x" * (deliver.LINE_LIMIT + 3) + b"\nno end"])
    deliverer.ended("file:7/log", (7, 1), 1, 0, 0)
    texts = [line.rsplit("stdout ", 1)[1] for line in (tmp_path / "tenant-7" / "log").read_text().splitlines()]
    assert texts == ["x" * deliver.LINE_LIMIT, "xxx", "no end"]


def test_the_files_of_a_tenant_are_its_own_few_and_limited(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(destinations, "FILE_LIMIT", 1000)
    said: list[list[Any]] = []
    deliverer = Deliverer(["/nowhere", "/nowhere", str(tmp_path), []], said.append)
    for number in range(destinations.FILES + 50):
        deliverer.take([f"file:7/report{number}", 7, 1, "name", 1, 0, b"x\n"])
    for _ in range(100):
        for name in ("../report0", "report0.1", "/".join("a" * 20)):
            deliverer.take([f"file:7/{name}", 7, 2, "name", 1, 0, b"x" * 100 + b"\n"])
    deliverer.take(["file:8/report0", 8, 1, "name", 1, 0, b"mine\n"])
    again = Deliverer(["/nowhere", "/nowhere", str(tmp_path), []], said.append)  # as after a restart
    again.take(["file:7/one-more", 7, 3, "name", 1, 0, b"x\n"])
    found = [path for path in (tmp_path / "tenant-7").rglob("*") if path.is_file()]
    assert len(found) <= destinations.FILES + 2
    assert sum(path.stat().st_size for path in found) < destinations.FILES * 100 + 4 * 1500
    assert [path.name for path in (tmp_path / "tenant-8").iterdir()] == ["report0"]
    assert {path.name for path in tmp_path.iterdir()} == {"tenant-7", "tenant-8"}
    assert [task for kind, task, *_ in said if kind == "lost"] == [7, 7, 7]
    assert "at most 100 files" in said[0][-1]


def test_a_folder_cannot_stand_where_the_earlier_half_of_a_file_goes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(destinations, "FILE_LIMIT", 1000)
    deliverer = Deliverer(["/nowhere", "/nowhere", str(tmp_path), []], lambda message: None)
    deliverer.take(["file:7/report.1/other", 7, 1, "name", 1, 0, b"x\n"])
    for _ in range(100):
        deliverer.take(["file:7/report", 7, 1, "name", 1, 0, b"x" * 100 + b"\n"])
    found = {str(path.relative_to(tmp_path)): path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert set(found) == {"tenant-7/report", "tenant-7/report.1", "tenant-7/report_1/other"}
    assert max(found.values()) < 1500

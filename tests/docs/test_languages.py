"""The same task in nine languages, as the page for task authors shows it: each is run where its toolchain is (H1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.docs.blocks import ROOT, blocks
from tests.support.agents import running_agent
from tests.support.packages import need
from tests.support.scripted_server import ScriptedServer

PAGE = "docs/task-authors.md"
FILES = {
    "python": ("square.py", None), "sh": ("square.sh", None), "js": ("square.js", "nodejs"), "perl": ("square.pl", "perl"),
    "tcl": ("square.tcl", "tcl"), "java": ("Square.java", "default-jdk-headless"), "c": ("square.c", "gcc"),
    "cpp": ("square.cpp", "g++"), "rust": ("square.rs", "rustc"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with ScriptedServer() as running, running_agent(tmp_path_factory.mktemp("agent"), running.url):
        yield running


def programs() -> dict[str, str]:
    """The first block of each language behind the heading."""
    text = (ROOT / PAGE).read_text()
    heading = text[: text.index("## The same task in nine languages")].count("\n")
    found: dict[str, str] = {}
    for block in blocks(*FILES):
        if block.page == PAGE and block.line > heading:
            found.setdefault(block.language, block.text)
    return found


@pytest.mark.parametrize("language", FILES)
def test_the_task_of_the_page_runs(server: ScriptedServer, tmp_path: Path, language: str) -> None:
    name, package = FILES[language]
    if package is not None:
        need(package)
    (tmp_path / name).write_text(programs()[language])
    room = Resources(cpus_milli=1000, memory=2**29)  # compilers are programs of the task too
    ref = server.order(server.define(executable=str(tmp_path / name), resources=room), 12)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.SUCCEEDED, (server.error(ref), server.text(ref, 2))
    assert server.finished[ref].result == b"144"
    assert any((said.id, said.text) == (ref[0], "squared") for said in server.progress)

"""Packages from an index that the operator names, through nothing but the network that the task was granted (H5 H11)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.content import Content, Requires
from headway.domain.lifecycle import Outcome
from headway.domain.resources import MIB, Resources
from tests.support.agents import running_agent
from tests.support.confined import need_sandbox
from tests.support.indexes import Index, running_index
from tests.support.packages import need
from tests.support.scripted_server import ScriptedServer

ROOM = Resources(cpus_milli=500, memory=512 * MIB, disk=256 * MIB)


@pytest.fixture
def index() -> Iterator[Index]:
    with running_index() as running:
        yield running


@pytest.fixture
def server(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    need_sandbox(tmp_path)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", index.url)
    with ScriptedServer() as running, running_agent(tmp_path / "agent", running.url):
        yield running


def run(server: ScriptedServer, command: tuple[str, ...], requires: Requires, network: tuple[str, ...]) -> tuple[int, int]:
    content = Content(requires=requires)
    return server.run(
        server.define(command=command, isolation="sandbox", tenant=7, resources=ROOM, content=content, network=network)
    )


def test_pip_installs_from_the_index_that_was_granted(server: ScriptedServer, index: Index) -> None:
    index.add_wheel("headway_demo", "answer = 42\n")
    words = (sys.executable, "-c", "import headway_demo; print(headway_demo.answer)")
    ref = run(server, words, Requires(pip=("headway_demo==1.0",)), (index.place,))
    assert server.text(ref) == "42\n", (server.error(ref), server.text(ref, 2))
    assert "/files/headway_demo-1.0-py3-none-any.whl" in index.asked


def test_npm_installs_from_the_registry_that_was_granted(server: ScriptedServer, index: Index) -> None:
    need("npm")
    index.add_npm("headway-demo", "module.exports = () => 'from npm'")
    words = ("node", "-e", "console.log(require('headway-demo')())")
    ref = run(server, words, Requires(npm=("headway-demo@1.0.0",)), (index.place,))
    assert server.text(ref) == "from npm\n", (server.error(ref), server.text(ref, 2))


def test_without_the_grant_the_index_is_not_reached_and_the_package_is_named(server: ScriptedServer, index: Index) -> None:
    index.add_wheel("headway_demo", "answer = 42\n")
    ref = run(server, ("true",), Requires(pip=("headway_demo==1.0",)), ())
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "pip could not install headway_demo==1.0" in server.error(ref)["message"]
    assert index.asked == []


def test_a_grant_of_one_place_opens_no_other(server: ScriptedServer, index: Index) -> None:
    index.add_wheel("headway_demo", "answer = 42\n")
    with running_index() as other:
        ref = run(server, ("true",), Requires(pip=("headway_demo==1.0",)), (other.place,))
        assert server.outcome(ref) is Outcome.NOT_STARTABLE
        assert (index.asked, other.asked) == ([], [])

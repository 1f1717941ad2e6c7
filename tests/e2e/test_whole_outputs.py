"""Output that is too much for the database is kept whole in an object store, and outlives its node (H9)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Client
from tests.support.agents import running_agent
from tests.support.s3 import bucket
from tests.support.scripted_server import ScriptedServer
from tests.support.upped import Upped, upped
from tests.support.waiting import until


def spooled(folder: Path) -> list[Path]:
    """What waits to be stored, of the agent whose data are in this folder. Nothing else is looked at: other folders come and go."""
    return list(folder.glob("agent/*/spool/*-*"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    folder = tmp_path_factory.mktemp("whole")
    with upped(folder / "up", HEADWAY_OUTPUT_STORE=f"file://{folder / 'store'}", HEADWAY_MAX_OUTPUT="4096") as running:
        yield running


def test_a_flood_is_cut_with_its_task_and_whole_in_the_store(up: Upped) -> None:
    with Client(up.url, up.token) as client:
        task = client.submit(command="i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done")
        assert task.wait(120).state == "succeeded"
        short = up.headway("logs", task.id, "--raw").stdout
        assert "bytes of output were cut here" in short
        assert len(short) < 6000
        until(lambda: up.headway("logs", task.id, "--whole").returncode == 0)
        whole = up.headway("logs", task.id, "--whole").stdout
        assert whole == "".join(f"line {number}\n" for number in range(5000))


def test_a_short_output_is_in_one_place_only(up: Upped) -> None:
    with Client(up.url, up.token) as client:
        task = client.submit(command="echo short")
        task.wait(120)
        answer = up.headway("logs", task.id, "--whole")
        assert answer.returncode == 1
        assert "has no whole output" in answer.stderr
        assert not [path for path in spooled(up.folder) if path.name.startswith(f"{task.id}-")]


def test_what_could_not_be_stored_is_stored_by_the_next_agent(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("a file where the folder should be: nothing can be stored")
    with ScriptedServer() as server:
        settings = {"output_store": f"file://{store}", "max_output": 4096}
        with running_agent(tmp_path / "agent", server.url, **settings):
            ref = server.run(server.define(command=("sh", "-c", "yes | head -n 20000")))
            (spool,) = spooled(tmp_path / "agent")
            assert spool.name == f"{ref[0]}-1"
            assert spool.stat().st_size == 40000
        store.unlink()
        with running_agent(tmp_path / "agent", server.url, **settings):
            until(lambda: [path.stat().st_size for path in store.rglob("1.log")] == [40000])
            until(lambda: not spool.exists())


def test_an_s3_store_takes_large_outputs_and_gives_them_back(tmp_path: Path) -> None:
    """Above the size from which objects are sent in parts, too."""
    with bucket("outputs") as environment:
        settings = {"HEADWAY_OUTPUT_STORE": "s3://outputs/headway", "HEADWAY_MAX_OUTPUT": "4096", **environment}
        with upped(tmp_path / "up", **settings) as up, Client(up.url, up.token) as client:
            task = client.submit(command="i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done")
            large = client.submit(command="yes 0123456789abcde | head -c 12000000")
            assert task.wait(120).state == "succeeded"
            until(lambda: up.headway("logs", task.id, "--whole").returncode == 0)
            assert up.headway("logs", task.id, "--whole").stdout == "".join(f"line {number}\n" for number in range(5000))
            assert large.wait(120).state == "succeeded"
            until(lambda: up.headway("logs", large.id, "--whole").returncode == 0)
            assert up.headway("logs", large.id, "--whole").stdout == "0123456789abcde\n" * 750_000
            until(lambda: not spooled(up.folder))

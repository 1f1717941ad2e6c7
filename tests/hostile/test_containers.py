"""What a container can do to its node by what it is given, leaves behind or asks for: nothing (H2 H11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.agents import running_agent
from tests.support.images import ENGINE, busybox_image
from tests.support.preloading import Preloading, preloading
from tests.support.scripted_server import ScriptedServer

SMALL = Resources(cpus_milli=500, memory=32 * 2**20)


@pytest.fixture(scope="module")
def image() -> str:
    return busybox_image()


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    (folder / "shared").write_text("of all")
    return folder


@pytest.fixture(scope="module")
def server(image: str, volume: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    settings = {"container_engine": ENGINE, "volumes": {"data": str(volume)}}
    with ScriptedServer() as running, running_agent(tmp_path_factory.mktemp("agent"), running.url, **settings):
        yield running


@pytest.fixture
def evil() -> Iterator[Preloading]:
    with preloading() as made:
        yield made


def run(server: ScriptedServer, image: str, *commands: str, volumes: tuple[str, ...] = (), **fields: object) -> tuple[int, int]:
    content = Content(image=image, commands=commands, volumes=volumes)
    return server.run(server.define(content=content, isolation="container", tenant=7, resources=SMALL, **fields))


def test_a_library_and_modules_a_task_names_are_not_loaded_by_the_engine(
    server: ScriptedServer, image: str, evil: Preloading
) -> None:
    ref = run(server, image, 'echo "$LD_PRELOAD $PYTHONPATH"', env=evil.variables)
    assert server.outcome(ref) is Outcome.SUCCEEDED, (server.error(ref), server.text(ref, 2))
    assert server.text(ref) == f"{evil.variables['LD_PRELOAD']} {evil.variables['PYTHONPATH']}\n"
    assert evil.ran() == []


def test_settings_of_the_engine_are_not_the_tasks_to_make(server: ScriptedServer, image: str, tmp_path: Path) -> None:
    (tmp_path / "containers.conf").write_text("[engine]\nruntime = \"/nowhere\"\n")
    ref = run(server, image, "echo $HOME", env={"CONTAINERS_CONF": str(tmp_path / "containers.conf"), "HOME": "/mine"})
    assert (server.outcome(ref), server.text(ref)) == (Outcome.SUCCEEDED, "/mine\n"), server.text(ref, 2)


def test_inside_a_container_has_its_variables_as_they_were_written(server: ScriptedServer, image: str) -> None:
    env = {"LINES": "one\ntwo\n", "EMPTY": "", "QUOTES": "\"a' b\"", "COMMENT": "a # b", "SPACE": " a ", "LONG": "x" * 70_000}
    show = [f'printf "%s;" "${name}"' for name in env if name != "LONG"] + ['printf "%s" "$LONG" | wc -c']
    ref = run(server, image, *show, env=env)
    assert server.text(ref) == "".join(f"{value};" for name, value in env.items() if name != "LONG") + "70000\n", server.text(ref, 2)


def test_a_variable_that_only_the_engines_environment_could_carry_and_that_it_obeys_is_refused(
    server: ScriptedServer, image: str
) -> None:
    ref = run(server, image, "true", env={"LD_PRELOAD": "/a.so\n/b.so"})
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "LD_PRELOAD of a container must be one line" in server.error(ref)["message"]


def test_volumes_can_be_read_and_not_written(server: ScriptedServer, image: str, volume: Path) -> None:
    ref = run(server, image, f"cat {volume}/shared; echo mine > {volume}/shared; ln -s /etc/shadow {volume}/link", volumes=("data",))
    assert server.outcome(ref) is Outcome.ERROR
    assert server.text(ref) == "of all"
    assert (volume / "shared").read_text() == "of all"
    assert not (volume / "link").is_symlink()


def test_a_link_named_like_a_note_leads_neither_agent_nor_engine_astray(server: ScriptedServer, image: str, tmp_path: Path) -> None:
    names = ("oom", "out-of-memory", "exit", "result.tmp")
    plant = [f"ln -s {tmp_path}/{name} /headway/{name}" for name in names]
    ref = run(server, image, *plant, "cd /headway; exec tail /dev/zero")
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY, (server.error(ref), server.text(ref, 2))
    assert list(tmp_path.iterdir()) == []


def test_a_container_cannot_claim_that_it_ran_out_of_memory(server: ScriptedServer, image: str) -> None:
    """It would get a larger tier for it."""
    ref = run(server, image, "echo > /headway/out-of-memory", "echo '{\"out-of-memory\": 1}' >&11 || true", "exit 137")
    assert server.outcome(ref) is Outcome.ERROR

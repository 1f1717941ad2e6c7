"""What a container can do to its node by what it is given, leaves behind or asks for: nothing (H2 H11)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.domain.content import Content
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.agents import running_agent
from tests.support.confined import stands_still_while_paused
from tests.support.images import busybox_image
from tests.support.preloading import Preloading, preloading
from tests.support.scripted_server import ScriptedServer

SMALL = Resources(cpus_milli=500, memory=32 * 2**20)


@pytest.fixture(scope="module")
def image(engine: str) -> str:
    return busybox_image(engine)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    (folder / "shared").write_text("of all")
    return folder


@pytest.fixture(scope="module")
def server(engine: str, volume: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    settings = {"container_engine": engine, "volumes": {"data": str(volume)}}
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


def test_a_container_that_claims_to_be_another_is_not_taken_for_it(server: ScriptedServer, image: str) -> None:
    """By the marks of that task in its environment: what it uses, and how it ends, is its own."""
    victim = 700_001
    marks = f"HEADWAY_TASK_ID={victim} HEADWAY_ATTEMPT=1"
    fill = "head -c 24000000 /dev/zero > /tmp/x; echo filled; sleep 600"
    content = Content(image=image, commands=(f"exec env {marks} sh -c '{fill}'",))
    forger = server.order(server.define(content=content, isolation="container", tenant=8, resources=SMALL))
    server.wait(lambda: "filled" in server.text(forger) or forger in server.finished)
    assert forger not in server.finished, (server.error(forger), server.text(forger, 2))
    content = Content(image=image, commands=("trap 'echo heard; exit 7' USR1; echo begun; n=0; while :; do sleep 0.05; done",))
    ref = server.order(server.define(content=content, isolation="container", tenant=7, resources=SMALL), task=victim)
    server.wait(lambda: "begun" in server.text(ref) or ref in server.finished)
    assert server.control(ref, "signal", "USR1") == "signalled"
    server.wait(lambda: ref in server.finished)
    assert (server.finished[ref].exit_code, "heard" in server.text(ref)) == (7, True), "the signal went to the other one"
    assert 0 < (server.finished[ref].max_memory or 0) < 16 * 2**20
    assert forger not in server.finished
    server.cancel(forger, 0.0)
    server.wait(lambda: forger in server.finished)


def test_a_container_that_drops_its_marks_is_still_paused_limited_and_ended(server: ScriptedServer, image: str) -> None:
    loop = "n=0; while :; do n=$((n+1)); echo step $n; sleep 0.05; done"
    content = Content(image=image, commands=(f"exec env -i sh -c '{loop}'",))
    ref = server.order(server.define(content=content, isolation="container", tenant=7, resources=SMALL))
    server.wait(lambda: "step" in server.text(ref) or ref in server.finished)
    stands_still_while_paused(server, ref)
    server.cancel(ref, 0.0)
    server.wait(lambda: ref in server.finished)
    assert (server.finished[ref].max_memory or 0) > 0

    content = Content(image=image, commands=("exec env -i sh -c 'head -c 30000000 /dev/zero > /tmp/x; sleep 600'",))
    small = Resources(cpus_milli=500, memory=64 * 2**20, disk=16 * 2**20)
    ref = server.run(server.define(content=content, isolation="container", tenant=7, resources=small))
    assert server.outcome(ref) is Outcome.DISK_FULL, (server.error(ref), server.text(ref, 2))


def test_containers_of_one_user_do_not_share_a_limit_of_processes(engine: str, tmp_path: Path) -> None:
    """The kernel's limit for a user counts all of its processes on the node, in whichever container they are."""
    content = Content(image=busybox_image(engine, user="4321"), commands=("for n in 1 2 3 4 5; do sleep 600 & done; echo all; wait",))
    with ScriptedServer() as server, running_agent(tmp_path, server.url, container_engine=engine, max_processes=8):
        number = server.define(content=content, isolation="container", tenant=7, resources=SMALL)
        first = random.getrandbits(40)  # an agent that was killed leaves names taken, and its folder may be used again
        refs = [server.order(number, task=first), server.order(number, task=first + 1)]
        server.wait(lambda: all("all" in server.text(ref) or ref in server.finished for ref in refs))
        assert not any(ref in server.finished for ref in refs), [server.text(ref, 2) for ref in refs]


def test_a_container_at_full_write_speed_is_held_at_its_disk_limit(server: ScriptedServer, image: str) -> None:
    """Looked at every now and then, it wrote seven times what it was allowed."""
    limit = 64 * 2**20
    content = Content(image=image, commands=("exec head -c 4000000000 /dev/zero > /tmp/x",))
    resources = Resources(cpus_milli=2000, memory=8 * limit, disk=limit)
    ref = server.run(server.define(content=content, isolation="container", tenant=7, resources=resources))
    assert server.outcome(ref) is Outcome.DISK_FULL, (server.error(ref), server.text(ref, 2))
    assert limit < server.error(ref)["excess"]["used"] < 2 * limit, "5 % above it at most in sixty runs"

"""Functions of tenants that require isolation: in warm runners inside a sandbox, one tenant to a runner (H3 H11)."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.agent.niceness import USUAL
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.hostile.hostile_functions import NONSENSE
from tests.support.confined import MIB, ROOM, confining, need_groups, need_sandbox
from tests.support.packages import need
from tests.support.scripted_server import ScriptedServer

Order = Callable[..., tuple[int, int]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with confining(tmp_path_factory.mktemp("agent"), paths=[str(Path(__file__).parent)]) as (running, _):
        yield running


def order(server: ScriptedServer, name: str, *args: Any, tenant: int = 7) -> tuple[int, int]:
    definition = server.define(function=f"hostile_functions:{name}", isolation="sandbox", tenant=tenant, resources=ROOM)
    return server.order(definition, list(args))


def call(server: ScriptedServer, name: str, *args: Any, tenant: int = 7) -> Any:
    ref = order(server, name, *args, tenant=tenant)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)
    return json.loads(server.finished[ref].result or b"null")


def test_a_function_runs_in_the_sandbox_and_its_runner_stays_warm(server: ScriptedServer) -> None:
    first, second = call(server, "where"), call(server, "where")
    assert first == second
    assert (first["uid"], first["seccomp"], first["cwd"], first["caps"]) == (1000, "2", "/task", "0" * 16)


def test_two_tenants_never_share_a_runner(server: ScriptedServer) -> None:
    assert call(server, "remember", "secret of 7", tenant=7) == ["secret of 7"]
    assert call(server, "remember", None, tenant=8) == []
    assert call(server, "remember", None, tenant=7) == ["secret of 7"]


def test_it_reaches_nothing_outside(server: ScriptedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert call(server, "reach", listening.getsockname()[1]) == "no"


def test_a_function_above_its_memory_ends_as_out_of_memory_and_the_next_one_runs(server: ScriptedServer) -> None:
    need_groups()
    ref = order(server, "grow", 600 * MIB)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY
    assert server.error(ref)["excess"]["what"] == "memory"
    assert call(server, "grow", 10 * MIB) == 10 * MIB


def trusted(server: ScriptedServer, name: str, *args: Any, **fields: Any) -> tuple[int, int]:
    definition = server.define(**{"function": f"hostile_functions:{name}", "resources": ROOM, **fields})
    return server.order(definition, list(args))


def test_memory_of_functions_of_trusted_tenants_is_held_too(server: ScriptedServer) -> None:
    need_groups()
    ref = trusted(server, "grow", 600 * MIB)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY
    excess = server.error(ref)["excess"]
    assert (excess["what"], excess["allowed"]) == ("memory", ROOM.memory)
    assert ROOM.memory <= excess["used"] < 600 * MIB
    ref = trusted(server, "grow", 10 * MIB)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.SUCCEEDED


def test_what_earlier_functions_left_in_a_trusted_runner_is_not_charged_to_the_next(server: ScriptedServer) -> None:
    """Each keeps 80 MiB, which it may; together they are more than one may have."""
    need_groups()
    for _ in range(3):
        ref = trusted(server, "keep", 80 * MIB)
        server.wait(lambda ref=ref: ref in server.finished)
        assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)


def test_that_holds_for_a_runner_of_another_language_too(server: ScriptedServer, tmp_path: Path) -> None:
    need_groups()
    need("perl")
    script = tmp_path / "keep.pl"
    script.write_text("my @kept;\nsub keep { my $piece = ''; vec($piece, $_[0], 8) = 1; push @kept, \\$piece; return scalar @kept }\n1;\n")
    number = server.define(function=f"{script}:keep", resources=Resources(cpus_milli=4000, memory=128 * MIB))
    for count in (b"1", b"2", b"3", b"4"):
        ref = server.order(number, [80 * MIB])
        server.wait(lambda ref=ref: ref in server.finished)
        assert server.finished[ref].result == count, server.error(ref)


def test_a_function_that_asks_for_more_gets_more_in_the_same_runner(server: ScriptedServer) -> None:
    need_groups()
    for memory, size in ((128, 100), (512, 400), (128, 100)):
        resources = Resources(cpus_milli=500, memory=memory * MIB)
        ref = trusted(server, "grow", size * MIB, resources=resources)
        server.wait(lambda ref=ref: ref in server.finished)
        assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)


def test_a_runner_that_kept_more_than_the_next_function_may_have_goes_on(server: ScriptedServer) -> None:
    need_groups()
    for name, memory, size in (("keep", 512, 300), ("grow", 64, 10), ("grow", 512, 100)):
        definition = server.define(
            function=f"hostile_functions:{name}", isolation="sandbox", tenant=9, resources=Resources(cpus_milli=500, memory=memory * MIB)
        )
        ref = server.order(definition, [size * MIB])
        server.wait(lambda ref=ref: ref in server.finished)
        assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)
    assert len(server.registered) == 1


def test_functions_have_no_better_priority_than_programs(server: ScriptedServer) -> None:
    ref = trusted(server, "niceness")
    server.wait(lambda: ref in server.finished)
    assert server.finished[ref].result == str(USUAL).encode()


def test_a_runner_that_reports_the_task_of_another_is_ended_and_not_believed(server: ScriptedServer) -> None:
    victim = server.order(server.define(command=("sleep", "600"), resources=ROOM))
    server.wait(lambda: any((one.id, one.attempt) == victim for one in server.started))
    ref = order(server, "forge", victim[0])
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.RUNNER_CRASHED
    assert victim not in server.finished
    server.cancel(victim, grace_s=0)
    server.wait(lambda: victim in server.finished)
    assert server.outcome(victim) is Outcome.CANCELLED


@pytest.fixture
def neighbour(server: ScriptedServer) -> Iterator[tuple[int, int]]:
    """A program that runs all the while: it ends when its supervisor does."""
    ref = server.order(server.define(command=("sleep", "600"), resources=ROOM))
    server.wait(lambda: any((one.id, one.attempt) == ref for one in server.started))
    boots = len(server.registered)
    yield ref
    assert ref not in server.finished
    assert len(server.registered) == boots
    server.cancel(ref, grace_s=0)
    server.wait(lambda: ref in server.finished)


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("how", [order, trusted])
def test_nonsense_on_its_socket_ends_the_runner_and_nobody_else(server: ScriptedServer, how: Order, kind: str) -> None:
    ref = how(server, "babble", kind)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.RUNNER_CRASHED
    assert "it was ended for" in server.error(ref)["message"]
    after = how(server, "grow", 5)
    server.wait(lambda: after in server.finished)
    assert server.outcome(after) is Outcome.SUCCEEDED


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("what", ["error", "result", "number"])
def test_an_end_that_nobody_could_store_ends_the_runner_and_nobody_else(server: ScriptedServer, what: str) -> None:
    ref = order(server, "fib", what)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.RUNNER_CRASHED
    assert "it was ended for" in server.error(ref)["message"]
    assert call(server, "grow", 5) == 5


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("how", [order, trusted])
@pytest.mark.parametrize(("name", "why"), [("announce", "a message that never ends"), ("ask", "questions without end")])
def test_one_that_says_something_without_end_is_ended(server: ScriptedServer, how: Order, name: str, why: str) -> None:
    ref = how(server, name)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.RUNNER_CRASHED
    assert why in server.error(ref)["message"]


def test_progress_that_is_told_without_end_goes_up_now_and_then_and_the_last_of_it_always(server: ScriptedServer) -> None:
    count = 20_000
    ref = order(server, "tell", count)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.SUCCEEDED
    server.wait(lambda: any(said.id == ref[0] and said.done == count for said in server.progress))
    assert sum(said.id == ref[0] for said in server.progress) < count // 10


def test_a_runner_cannot_take_from_under_the_supervisor_what_they_share(server: ScriptedServer) -> None:
    ref = order(server, "cut_down", 0)
    server.wait(lambda: ref in server.finished)
    assert server.finished[ref].result == b"[]", server.error(ref)
    assert call(server, "grow", 5) == 5
    assert len(server.registered) == 1


@pytest.mark.parametrize("number", [-1, 2, 10**6, 2**63 - 1, -(2**63)])
def test_a_runner_that_scribbles_over_what_it_shares_ends_alone(server: ScriptedServer, number: int) -> None:
    ref = order(server, "scribble", number)
    server.wait(lambda: ref in server.finished)
    # One that has done a task before, and says of its second that it began when the machine did, is above its cap if looked at in time.
    assert server.outcome(ref) in {Outcome.RUNNER_CRASHED, *([Outcome.CAP_EXCEEDED] if number == 2 else [])}
    assert call(server, "grow", 5) == 5
    assert len(server.registered) == 1


@pytest.mark.parametrize("number", [0, 1, 10**6])
def test_a_function_that_denies_to_have_begun_is_held_to_its_cap_and_can_be_cancelled(server: ScriptedServer, number: int) -> None:
    fields = {"function": "hostile_functions:stay", "isolation": "sandbox", "tenant": 7, "resources": ROOM}
    capped, free = server.define(**fields, cap_ms=500), server.define(**fields)
    ref, other = server.order(capped, [number]), server.order(free, [number])
    server.wait(lambda: ref in server.finished, timeout=120)
    assert server.outcome(ref) is Outcome.CAP_EXCEEDED
    server.cancel(other, grace_s=0.2)
    server.wait(lambda: other in server.finished, timeout=120)
    assert server.outcome(other) is Outcome.CANCELLED
    assert len(server.registered) == 1


def test_forty_tenants_at_once_each_get_their_sandbox_and_the_agent_stays_awake(server: ScriptedServer) -> None:
    grow = [
        server.define(function="hostile_functions:grow", isolation="sandbox", tenant=tenant, resources=ROOM) for tenant in range(100, 140)
    ]
    ended = server.run_each([(definition, b"[5]") for definition in grow])
    assert {finished.outcome for finished in ended} == {Outcome.SUCCEEDED}

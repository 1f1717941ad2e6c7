"""The Python client against a whole Headway: embedded database, server, agent, runners."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import AsyncClient, Client, Executor, TaskSpec, errors
from headway.client.outcomes import TaskCancelled
from tests.support.upped import upped
from tests.support.waiting import until
from tests.unit import client_jobs as jobs

ROOT = Path(__file__).parents[2]
SOON = 120.0  # seconds; a task on an idle machine takes milliseconds


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running `headway up` of its own folder, found by HEADWAY_DATA as users find theirs."""
    with upped(tmp_path_factory.mktemp("up"), HEADWAY_PATHS=str(ROOT)) as running:
        yield running.folder
        assert running.end() == 0


@pytest.fixture
def found(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_DATA", str(data_dir))
    for name in ("HEADWAY_URL", "HEADWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hw(found: None) -> Iterator[Client]:
    with Client() as client:
        yield client


def test_calls_keep_their_types_on_the_way_there_and_back(hw: Client) -> None:
    assert jobs.add.submit(1, b=2).result(SOON) == 3
    assert jobs.mirrored.submit(jobs.Point(1, 2)).result(SOON) == jobs.Point(2, 1)
    assert jobs.later.submit(datetime.date(2026, 12, 31)).result(SOON) == datetime.date(2027, 1, 1)
    assert jobs.unique.submit([1, 1, 2]).result(SOON) == {1, 2}


def test_map_returns_results_in_order(hw: Client) -> None:
    assert [handle.result(SOON) for handle in jobs.add.map(range(300))] == list(range(1, 301))


def test_a_failure_brings_the_traceback_of_the_node(hw: Client) -> None:
    with pytest.raises(errors.TaskFailed, match="ValueError: cannot do this") as caught:
        jobs.broken.submit("this").result(SOON)
    assert "in broken" in caught.value.traceback


def test_a_task_knows_its_attempt_and_reports_progress(hw: Client) -> None:
    handle = jobs.attempt_of_two.options(retry={"interval": 0}).submit()
    assert handle.result(SOON) == 2
    assert [attempt.outcome for attempt in hw.attempts(handle.id)] == ["error", "succeeded"]


def test_commands_give_output_and_exit_codes(hw: Client) -> None:
    handle = hw.submit(TaskSpec(command="echo out; echo err >&2; exit 3", name="talkative"))
    view = handle.wait(SOON)
    assert (view.state, view.exit_code, view.name) == ("failed", 3, "talkative")
    lines = {(line.stream, line.text.strip()) for line in handle.logs(follow=True)}
    assert lines == {("stdout", "out"), ("stderr", "err")}


def test_the_same_key_gives_the_first_task_back_and_another_payload_is_a_conflict(hw: Client) -> None:
    first = hw.submit(command="true", idempotency_key="client-e2e")
    assert hw.submit(command="true", idempotency_key="client-e2e").id == first.id
    with pytest.raises(errors.IdempotencyConflict):
        hw.submit(command="false", idempotency_key="client-e2e")


def test_a_bulk_is_all_or_nothing_and_its_tasks_may_wait_for_each_other(hw: Client) -> None:
    with pytest.raises(errors.InvalidInput):
        hw.submit_many([{"command": "true", "name": "half-a-bulk"}, {"attempts": 1}])
    assert hw.page(name="half-a-bulk").tasks == []
    before, after = hw.submit_many([{"command": "true", "name": "a"}, {"command": "true", "name": "b", "after": "a"}])
    views = hw.wait([before.id, after.id], timeout=SOON)
    assert [view.state for view in views] == ["succeeded", "succeeded"]
    assert views[0].ended_at is not None
    assert views[1].started_at is not None
    assert views[0].ended_at <= views[1].started_at


def test_a_bulk_with_a_key_can_be_repeated(hw: Client) -> None:
    tasks = [{"command": "true"}, {"command": "true"}]
    first = [handle.id for handle in hw.submit_many(tasks, key="nightly")]
    assert [handle.id for handle in hw.submit_many(tasks, key="nightly")] == first


def test_a_running_task_is_cancelled(hw: Client) -> None:
    handle = hw.submit(command="echo begun; sleep 1000")
    assert next(handle.logs(follow=True)).text == "begun\n"
    handle.cancel()
    with pytest.raises(TaskCancelled):
        handle.result(SOON)


def test_a_wait_ends_with_its_timeout(hw: Client) -> None:
    handle = hw.submit(command="sleep 1000")
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.2)
    handle.cancel()
    assert handle.wait(SOON).state == "cancelled"


def test_what_is_wrong_is_told_with_field_and_hint(hw: Client) -> None:
    with pytest.raises(errors.UnknownField, match="did you mean") as caught:
        hw.submit(comand="true")
    assert caught.value.field == "comand"
    with pytest.raises(errors.NotFound):
        hw.result(1)


def test_lists_are_filtered_and_followed_by_cursor(hw: Client) -> None:
    hw.wait([h.id for h in hw.submit_inputs({"command": "true", "name": "listed", "labels": {"e2e": "yes"}}, range(7))])
    found = list(hw.iterate(size=3, label={"e2e": "yes"}, state="succeeded"))
    assert len({view.id for view in found}) == len(found) == 7


def test_dead_letters_are_grouped_edited_and_sent_again(hw: Client) -> None:
    handle = hw.submit(command="exit 9", name="dying")
    assert handle.wait(SOON).state == "failed"
    group = next(group for group in hw.dead_groups() if group.name == "dying")
    assert group.example == handle.id
    with pytest.raises(errors.InvalidInput, match="'comand' cannot be changed") as caught:
        hw.retry(handle.id, edit={"comand": "true"})
    assert caught.value.hint == "did you mean 'command'?"
    hw.retry(handle.id, edit={"command": "true"})
    assert hw.wait([handle.id], timeout=SOON)[0].state == "succeeded"


def test_a_tree_is_watched_to_its_end(hw: Client) -> None:
    tasks = [{"name": "leaf", "command": "true"}, {"name": "root", "command": "true", "after": ["leaf"]}]
    tree = hw.submit_tree("small", tasks).tree
    assert tree is not None
    *_, last = hw.watch_tree(tree)
    assert (last.state, [level.left for level in last.levels]) == ("succeeded", [0, 0])


def test_a_tree_with_a_key_is_submitted_once(hw: Client) -> None:
    tasks = [{"name": "leaf", "command": "true"}, {"name": "root", "command": "true", "after": ["leaf"]}]
    first = hw.submit_tree("keyed", tasks, key="tree-of-today")
    again = hw.submit_tree("keyed", tasks, key="tree-of-today")
    assert (again.tree, again.ids) == (first.tree, first.ids)
    with pytest.raises(errors.IdempotencyConflict):
        hw.submit_tree("keyed", tasks[:1], key="tree-of-today")
    assert len(hw.trees(name="keyed").trees) == 1


def test_the_executor_completes_and_cancels_futures(hw: Client) -> None:
    with Executor(hw, attempts=2, retry={"interval": 0}) as pool:
        assert list(pool.map(jobs.plain, range(50))) == [2 * i for i in range(50)]
        assert pool.submit(jobs.add, 1, b=1).result(SOON) == 2
        with pytest.raises(errors.TaskFailed, match="cannot do it"):
            pool.submit(jobs.broken, "it").result(SOON)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(jobs.plain, 1)


def test_a_future_that_has_not_begun_can_be_cancelled_and_a_running_one_cannot(hw: Client) -> None:
    blocker = hw.submit(command="sleep 1000")
    pool = Executor(hw, after=[blocker.id])
    waiting = pool.submit(jobs.plain, 1)
    until(lambda: getattr(waiting, "handle", None), what="it is submitted")
    assert waiting.cancel()
    assert waiting.cancelled()
    assert concurrent.futures.wait([waiting], timeout=SOON).done == {waiting}
    blocker.cancel()
    pool.shutdown()


def test_a_future_fails_with_what_the_function_raised(hw: Client) -> None:
    with Executor(hw) as pool:
        for kind in (ValueError, errors.TaskFailed):
            with pytest.raises(kind, match="ValueError: cannot do it") as failed:
                pool.submit(jobs.broken, "it").result(SOON)
        assert "jobs.py" in failed.value.traceback  # type: ignore[attr-defined]
        with pytest.raises(jobs.Odd) as odd:
            pool.submit(jobs.raises_its_own, 3).result(SOON)
        assert isinstance(odd.value, LookupError)
        again = pickle.loads(pickle.dumps(odd.value))
        assert (type(again), str(again)) == (errors.TaskFailed, str(odd.value))


def test_shutdown_cancels_what_has_not_begun_sent_or_not(hw: Client) -> None:
    blocker = hw.submit(command="sleep 1000")
    pool = Executor(hw, after=[blocker.id])
    futures = [pool.submit(jobs.plain, i) for i in range(100)]
    pool.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)
    blocker.cancel()


def test_who_leaves_a_map_early_cancels_the_rest(hw: Client) -> None:
    blocker = hw.submit(command="sleep 1000")
    pool = Executor(hw, after=[blocker.id], labels={"map": "left"})
    with pytest.raises(TimeoutError):
        next(pool.map(jobs.plain, range(20), timeout=0.1))
    assert not pool.store()
    assert {task.state for task in hw.iterate(label="map=left")} <= {"cancelled"}
    blocker.cancel()


def test_closing_the_client_ends_every_future(found: None) -> None:
    client = Client()
    blocker = client.submit(command="sleep 1000")
    pool = Executor(client, after=[blocker.id])
    stored = pool.submit(jobs.plain, 1)
    assert pool.store() == []
    last = pool.submit(jobs.plain, 2)
    client.close()
    assert concurrent.futures.wait([stored, last], timeout=SOON).not_done == set()
    with pytest.raises(ConnectionError, match="closed"):
        stored.result()
    pool.shutdown()
    with Client() as other:
        other.cancel(blocker.id)


def test_a_program_that_ends_has_stored_what_it_submitted(hw: Client, data_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(
        "from headway import Executor\nfrom tests.unit import client_jobs as jobs\n"
        "pool = Executor(labels={'left': 'behind'})\n"
        "for i in range(300):\n    pool.submit(jobs.plain, i)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(script)], check=True, timeout=180, env=environment)
    assert sum(1 for _ in hw.iterate(label="left=behind")) == 300
    nowhere = {**environment, "HEADWAY_URL": "http://127.0.0.1:9", "HEADWAY_TOKEN": "hw_x"}
    said = subprocess.run([sys.executable, str(script)], timeout=180, env=nowhere, capture_output=True, text=True)
    assert "300 calls were not submitted: http://127.0.0.1:9" in said.stderr


def test_a_function_of_a_script_runs_with_the_classes_of_the_script(found: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            from dataclasses import dataclass
            from headway import Client, task

            @dataclass
            class Money:
                cents: int

            @task
            def double(money: Money) -> Money:
                return Money(money.cents * 2)

            if __name__ == "__main__":
                with Client() as hw:
                    result = double.submit(Money(21)).result(timeout=120)
                    print(result, isinstance(result, Money))
        """)
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("Money(cents=42) True\n", "")


def test_a_script_without_a_main_guard_is_told_so_and_does_not_submit_itself_again(hw: Client, data_dir: Path, tmp_path: Path) -> None:
    """Each runner that loaded it submitted it once more, and waited for that one: tasks without end, none of which ended."""
    token = (data_dir / "token").read_text().strip()
    script = tmp_path / "guardless.py"
    script.write_text(
        textwrap.dedent(f"""
            from headway import Client, task

            @task
            def guardless() -> int:
                return 1

            with Client("{hw.url}", "{token}"):
                print(guardless.submit().result(timeout={SOON}))
        """)
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert "NotStartable" in ran.stderr
    assert 'below `if __name__ == "__main__":`' in ran.stderr
    assert [view.state for view in hw.iterate(name="guardless")] == ["failed"]


async def test_the_async_client_does_the_same(found: None) -> None:
    async with AsyncClient() as hw:
        assert await (await jobs.add.aio(20, 22)) == 42
        results = await asyncio.gather(*await hw.submit_inputs({"function": "operator:neg"}, [[i] for i in range(50)]))
        assert results == [-i for i in range(50)]


async def test_events_tell_about_a_task(found: None) -> None:
    async with AsyncClient() as hw:
        events = hw.events()
        first = asyncio.ensure_future(anext(events))
        ids = set()
        while not first.done():  # the stream begins at its end: go on until it has begun
            handle = await hw.submit(command="true")
            await handle.wait(SOON)
            ids.add(handle.id)
            await asyncio.wait([first], timeout=0.5)
        event = await first
        assert event.kind.startswith("task.")
        assert ids.intersection(event.tasks)


def test_numbers_are_there_to_be_read(hw: Client) -> None:
    assert hw.whoami()["role"] == "admin"
    assert [node.state for node in hw.nodes()] == ["up"]
    assert {queue.name for queue in hw.queues()} >= {"urgent", "delayable", "periodic"}
    assert "basic" in hw.tiers()
    assert hw.stats().servers == 1


def test_a_handle_says_why_it_waits_and_is_changed_in_place(hw: Client) -> None:
    handle = hw.submit(command="true", at="2099-01-01T00:00:00Z", labels={"made": "later"})
    assert (handle.predicted_start, handle.warning) == (None, None)
    waits = handle.explain()
    assert (waits.state, waits.reasons[0].code) == ("scheduled", "scheduled")
    assert hw.limits().waiting.used >= 1
    assert handle.change(at="now", name="another").name == "another"
    assert handle.wait(SOON).state == "succeeded"
    assert "running" in hw.explain(handle.id).spent
    with pytest.raises(errors.Conflict, match="succeeded"):
        hw.change(handle.id, name="again")


def test_only_the_events_that_were_asked_for_are_followed(hw: Client) -> None:
    before = hw.submit(command="true").wait(SOON)
    cursor = next(event.id for event in hw.events("succeeded", after="1-0") if before.id in event.tasks)
    fails = hw.submit(command="false").wait(SOON)
    hw.submit(command="true").wait(SOON)
    assert next(event.tasks for event in hw.events("failed", after=cursor)) == [fails.id]

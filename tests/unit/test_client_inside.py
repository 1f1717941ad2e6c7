"""Keys of submissions inside a task: the same in every run, whoever of its processes submits (C4)."""

from __future__ import annotations

import threading

import pytest

from headway.agent.tokens import Tokens, waits_for
from headway.client import context, inside
from headway.client.inside import Inside
from headway.domain.task import Definition
from headway.wire import task_token
from headway.wire.exchange import Order

PROGRAM = Definition(name="program", command=("true",))


def keys(of: Inside, *contents: bytes) -> list[str]:
    with of.claim(contents) as found:
        return found


@pytest.mark.parametrize("shared", [False, True])
def test_the_same_submissions_have_the_same_keys_in_every_run_in_any_order(tmp_path, shared):
    def run(name: str, *contents: bytes) -> list[str]:
        journal = str(tmp_path / name) if shared else None
        process = Inside(journal)
        found = []
        for content in contents:
            found += keys(process, content)
            process = Inside(journal) if shared else process  # each `headway submit` is a process of its own
        return found

    first = run("first", b"a", b"b", b"a")
    assert len(set(first)) == 3
    assert sorted(run("second", b"a", b"a", b"b")) == sorted(first)
    assert keys(Inside(str(tmp_path / "third")), b"a", b"b", b"a") == first


def test_a_submission_that_did_not_get_through_is_made_again_under_the_same_key(tmp_path):
    of = Inside(str(tmp_path / "journal"))
    tried: list[str] = []

    def fails() -> None:
        with of.claim([b"a"]) as (key,):
            tried.append(key)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fails()
    assert keys(of, b"a") == tried


def test_many_processes_that_submit_the_same_at_once_get_different_keys(tmp_path):
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(keys(Inside(str(tmp_path / "j")), b"same"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 20


def test_what_is_waited_for_is_left_for_the_agent(tmp_path):
    journal = tmp_path / "subtasks"
    of = Inside(str(journal))
    of.submitted(["7", "8", "7"])
    assert of.children == ["7", "8"]
    end = of.suspended(["8", "7"])
    assert isinstance(end, SystemExit)
    assert end.code == 85
    with open(journal, "a") as file:
        file.write("waits for ever\nwaits -1\nwaits 99999999999999999999999\n\x00\n")
    assert waits_for(str(tmp_path)) == [7, 8]
    assert waits_for(str(tmp_path / "none")) == []


def test_a_function_is_suspended_by_an_exception_that_except_exception_lets_pass():
    end = Inside().suspended(["5"])
    assert isinstance(end, context.Suspended)
    assert not isinstance(end, Exception)
    assert end.waits == [5]


def test_only_the_token_of_a_task_makes_a_client_one_of_a_task(monkeypatch, tmp_path):
    order = Order(17, 2, 1, b"")
    tokens = Tokens("http://127.0.0.1:1", "/ca.pem")
    assert tokens.environment(order, "/scratch", PROGRAM) == {}
    tokens.key = b"k" * 32
    env = tokens.environment(order, str(tmp_path), PROGRAM)
    assert env["HEADWAY_TLS_CA"] == "/ca.pem"
    assert task_token.parse(env["HEADWAY_TOKEN"]) == (17, 2)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert inside.of(env["HEADWAY_TOKEN"]) is not None
    assert inside.of("hw_somebody") is None
    assert inside.of(None) is None

"""A task from the command line has the fields a task file would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from headway.cli.options import TASK_OPTIONS, edits, task
from headway.cli.work import read
from headway.domain.spec import TaskSpec
from headway.errors import InvalidInput


def given(**options: Any) -> dict[str, Any]:
    return {**dict.fromkeys(TASK_OPTIONS), **options}


def test_only_what_was_given_is_sent() -> None:
    assert task(given(name="a", attempts=3)) == {"name": "a", "attempts": 3}


def test_every_option_becomes_a_field_that_a_task_has() -> None:
    spec = task(
        given(
            name="a", label=["team=web"], executable="./a.sh", arg=["x"], env=["K=V=W"], workdir="/", input='{"n": 1}',
            interpreter="sh", resources="cpus=2,memory=1GiB,labels.gpu=a100", category="urgent", attempts=3,
            retry="interval=10s,backoff=1.5", execution_cap="10m", delay_tolerance="1h", after=["12", "13:failed"],
            at="2026-11-15T03:00:00Z", idempotency_key="k", size=2.5,
        )
    )  # fmt: skip
    found = msgspec.json.decode(json.dumps(spec), type=TaskSpec)
    assert found.labels == {"team": "web"}
    assert found.env == {"K": "V=W"}
    assert bytes(found.input) == b'{"n": 1}'
    assert msgspec.to_builtins(found.resources) == {
        "tier": None, "cpus": 2, "memory": "1GiB", "disk": None, "iops": None, "bandwidth": None, "ports": None,
        "labels": {"gpu": "a100"},
    }  # fmt: skip
    assert found.retry is not None
    assert (found.retry.interval, found.retry.backoff) == ("10s", 1.5)
    assert spec["after"] == ["12", {"task": "13", "when": "failed"}]


def test_a_number_that_is_none_is_sent_as_it_was_typed() -> None:
    assert task(given(resources="cpus=nan,disk=inf"))["resources"] == {"cpus": "nan", "disk": "inf"}


def test_an_input_of_null_is_sent_as_null() -> None:
    assert task(given(input="null")) == {"input": None}


def test_an_input_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("[1, 2]")
    assert task(given(input=f"@{tmp_path}/in.json")) == {"input": [1, 2]}


def test_an_input_that_is_no_json_is_refused_with_the_forms_that_are() -> None:
    with pytest.raises(typer.BadParameter, match="write JSON"):
        task(given(input="{n"))


def test_edits_are_json_or_text_and_the_single_ones_win() -> None:
    assert edits(["attempts=5", "name=x"], '{"attempts": 2, "size": 1}') == {"attempts": 5, "name": "x", "size": 1}


def test_a_command_runs_in_the_folder_it_was_typed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    work = read(None, ["make", "-C", "x"], {"attempts": 2})
    assert work.task == {"attempts": 2, "command": ["make", "-C", "x"], "workdir": str(tmp_path)}


def test_a_file_and_a_command_are_too_much() -> None:
    with pytest.raises(typer.BadParameter, match="not both"):
        read("a.yaml", ["true"], {})


def test_a_file_with_options_of_a_task_is_too_much() -> None:
    with pytest.raises(typer.BadParameter, match="--execution-cap"):
        read("a.yaml", None, {"execution_cap": "1m"})


def test_inputs_are_one_json_value_a_line_and_a_bad_line_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.ndjson", tmp_path / "bad.ndjson"
    good.write_text('1\n\n{"a": 2}\n')
    bad.write_text("1\n{a\n")
    assert read(None, None, {"function": "m:f"}, inputs=str(good)).inputs == [1, {"a": 2}]
    with pytest.raises(InvalidInput, match=r"bad\.ndjson:2: not JSON"):
        read(None, None, {"function": "m:f"}, inputs=str(bad))


def test_a_file_of_one_task_is_a_task_and_a_file_of_a_tree_is_a_tree(tmp_path: Path) -> None:
    one, tree = tmp_path / "one.yaml", tmp_path / "tree.yaml"
    one.write_text("name: hello\ncommand: [echo, hi]\n")
    tree.write_text("nightly:\n  task:\n    command: [echo, hi]\n    fetch:\n      command: [echo, fetch]\n")
    assert read(str(one), None, {}).task == {"name": "hello", "command": ["echo", "hi"]}
    assert [found.name for found in read(str(tree), None, {}).trees] == ["nightly"]


def test_a_missing_file_is_told_with_how_to_run_a_command() -> None:
    with pytest.raises(InvalidInput) as caught:
        read("nosuchthing", None, {})
    assert caught.value.hint == "`headway run -- nosuchthing` runs a command"


def test_for_each_takes_a_list_or_the_result_of_a_task() -> None:
    assert task(given(for_each="[1, 2]", with_results=True)) == {"for_each": [1, 2], "with_results": True}
    assert task(given(for_each="result-of=17")) == {"for_each": {"result_of": "17"}}
    with pytest.raises(typer.BadParameter, match="no list"):
        task(given(for_each="3"))

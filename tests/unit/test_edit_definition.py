"""What a task is can be written as a user would, and read again: else a change of one field would change others (F4 F5)."""

from __future__ import annotations

import msgspec
import pytest

from headway.control.actions import edit_definition
from headway.domain.define import define
from headway.domain.spec import TaskSpec
from headway.domain.task import Definition
from headway.domain.tenant import STANDARD
from headway.errors import InvalidInput

WHOLE: list[dict[str, object]] = [
    {"command": ["a", "b"], "args": ["c"], "env": {"A": "b"}, "workdir": "/w", "interpreter": "python", "secrets": {"X": "y"}},
    {"function": "m:f", "codec": "pickle", "with_results": True, "category": "urgent", "preemptible": True, "isolation": "sandbox"},
    {"executable": "https://a.example/x", "checksum": f"sha256:{'0' * 64}", "requires": ["numpy"], "prepare": "make", "network": "all"},
    {"executable": "volume:data/x.sh", "volumes": ["data"], "logger": "syslog", "archives": ["https://example.com/a.tar.gz"]},
    {"image": "debian:12", "commands": ["a", "b"], "resources": {"cpus": 2.5, "memory": "1GiB", "ports": 2, "labels": {"gpu": "a100"}}},
    {"stages": [{"name": "one", "command": ["a"]}, {"name": "two", "command": ["b"]}], "resources": "premium", "notify": ["https://example.com/"]},
    {"command": "x", "attempts": 7, "retry": {"interval": "1m", "backoff": 3, "max": "1h", "jitter": 0.5, "node_losses": 1}},
    {"command": "x", "execution_cap": "1h", "delay_tolerance": "5m", "max_wait": "1d", "on_max_wait": "keep", "on_late": "refuse"},
    {"command": "x", "queue": "nights", "off_peak": "never", "notify": [{"to": "ops", "events": ["failed", "killed"]}]},
]  # fmt: skip


def made(fields: dict[str, object]) -> Definition:
    return define(msgspec.convert(fields, TaskSpec), STANDARD)


@pytest.mark.parametrize("fields", WHOLE, ids=lambda fields: ",".join(fields)[:40])
def test_a_change_to_what_it_is_already_changes_nothing(fields):
    old = made(fields)
    assert edit_definition(old, {"attempts": old.attempts}, STANDARD) == old


def test_one_that_runs_something_else_is_called_after_that():
    old = made({"command": "sleep 1"})
    assert edit_definition(old, {"attempts": 2}, STANDARD).name == "sleep"
    assert edit_definition(old, {"command": "echo hello"}, STANDARD).name == "echo"


def test_every_field_of_a_task_is_among_them():
    own = {"name", "labels", "input", "after", "at", "idempotency_key", "size", "for_each"}  # not of the definition
    assert {field for fields in WHOLE for field in fields} | own == set(TaskSpec.__struct_fields__)


@pytest.mark.parametrize("field", ["for_each", "after", "idempotency_key"])
def test_what_is_not_of_the_definition_cannot_be_changed_with_it(field):
    with pytest.raises(InvalidInput, match="cannot be changed here"):
        edit_definition(made(WHOLE[0]), {field: []}, STANDARD)

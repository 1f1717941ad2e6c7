"""What a user writes is checked once, and every refusal says which field and what was expected (A1 A8 G1)."""

from __future__ import annotations

import msgspec
import pytest

from headway.domain import units
from headway.domain.checks import DEEPEST, check_nesting
from headway.domain.define import define, edges
from headway.domain.lifecycle import State
from headway.domain.resources import TIERS, Capacity, fits
from headway.domain.spec import TaskSpec
from headway.domain.task import Category, encode
from headway.errors import InvalidInput


def spec(**fields) -> TaskSpec:
    return msgspec.convert({"command": ["true"], **fields}, TaskSpec)


def test_what_a_task_runs_is_said_so_that_a_shell_understands_it():
    assert define(spec(command=["sh", "-c", "echo $HOME; exit 3"])).what == "sh -c 'echo $HOME; exit 3'"
    assert define(spec(command=None, executable="/srv/my report.sh", args=["-v"])).what == "'/srv/my report.sh' -v"


def test_defaults_are_those_of_the_specification():
    made = define(spec())
    assert (made.attempts, made.cap_ms, made.tolerance_ms, made.category) == (1, 600_000, 60_000, Category.DELAYABLE)
    assert (made.retry.interval_ms, made.retry.backoff, made.retry.max_ms, made.retry.jitter, made.retry.node_losses) == (
        10_000,
        2,
        300_000,
        0.1,
        3,
    )
    assert made.resources == TIERS["basic"]


def test_no_tolerance_makes_it_urgent():
    assert define(spec(delay_tolerance=0)).category is Category.URGENT
    assert define(spec(category="urgent")).tolerance_ms == 0


def test_exact_resources_fill_up_from_the_basic_tier():
    made = define(spec(resources={"cpus": 2, "memory": "512MiB", "labels": {"gpu": "a100"}}))
    assert (made.resources.cpus_milli, made.resources.memory, made.resources.disk) == (2000, 512 * 2**20, 2**30)
    assert not fits(made.resources, Capacity(4000, 2**34, 2**40))
    assert fits(made.resources, Capacity(4000, 2**34, 2**40, labels={"gpu": "a100"}))


def test_equal_definitions_have_equal_bytes_whatever_the_order_of_their_fields():
    a = define(spec(env={"A": "1", "B": "2"}, attempts=3))
    b = define(spec(attempts=3, env={"B": "2", "A": "1"}))
    assert encode(a) == encode(b)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"command": None}, "command", "nothing to run"),
        ({"command": None, "executable": "/x", "interpreter": ""}, "interpreter", "the interpreter is empty"),
        ({"command": None, "executable": "/x", "interpreter": " \t"}, "interpreter", "the interpreter is empty"),
        ({"command": None, "stages": [{"executable": "/x", "interpreter": " "}]}, "stages[0]", "the interpreter is empty"),
        ({"command": None, "stages": [{"command": []}]}, "stages[0]", "nothing to run"),
        ({"function": "a:b"}, "function", "runs one thing"),
        ({"command": None, "function": "nonsense"}, "function", "names no function"),
        ({"attempts": 0}, "attempts", "out of range"),
        ({"attempts": 10**9}, "attempts", "out of range"),
        ({"execution_cap": 0}, "execution_cap", "out of range"),
        ({"execution_cap": "2d"}, "execution_cap", "out of range"),
        ({"execution_cap": "soon"}, "execution_cap", "not a duration"),
        ({"execution_cap": float("nan")}, "execution_cap", "not a duration"),
        ({"delay_tolerance": -1}, "delay_tolerance", "out of range"),
        ({"category": "important"}, "category", "unknown"),
        ({"resources": "huge"}, "resources", "no tier"),
        ({"resources": {"cpus": -1}}, "resources.cpus", "out of range"),
        ({"resources": {"memory": "lots"}}, "resources.memory", "not a size"),
        ({"resources": {"ports": -1}}, "resources.ports", "out of range"),
        ({"retry": {"backoff": 0.5}}, "retry.backoff", "out of range"),
        ({"retry": {"interval": "x"}}, "retry.interval", "not a duration"),
        ({"env": {"1A": "x"}}, "env", "not a variable name"),
        ({"env": {"A": "x\x00"}}, "env.A", "NUL"),
        ({"command": ["a\x00"]}, "command", "NUL"),
        ({"workdir": "a\x00"}, "workdir", "NUL"),
        ({"codec": "xml"}, "codec", "unknown"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(fields, field, words):
    with pytest.raises(InvalidInput, match=words) as error:
        define(spec(**fields))
    assert error.value.field == field


def test_edges_have_kinds_and_an_unknown_kind_is_refused():
    made = edges(msgspec.convert({"after": ["a", {"task": "b", "when": "failed"}]}, TaskSpec).after)
    assert [(e.task, e.when.name) for e in made] == [("a", "SUCCEEDED"), ("b", "FAILED")]
    with pytest.raises(InvalidInput, match="unknown"):
        edges(msgspec.convert({"after": [{"task": "b", "when": "never"}]}, TaskSpec).after)


@pytest.mark.parametrize(
    ("text", "seconds"), [(90, 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("250ms", 0.25), ("1.5", 1.5)]
)
def test_durations(text, seconds):
    assert units.seconds(text, "x") == seconds


@pytest.mark.parametrize("text", ["", "m", "10 parsecs", "-5s", True, "1h30", float("inf")])
def test_what_is_no_duration(text):
    with pytest.raises(InvalidInput):
        units.seconds(text, "x")


@pytest.mark.parametrize(("text", "count"), [(5, 5), ("512MiB", 512 * 2**20), ("2 GB", 2 * 10**9), ("1k", 1000)])
def test_sizes(text, count):
    assert units.size(text, "x") == count


def test_states_have_the_published_codes():
    words = [
        "blocked",
        "scheduled",
        "ready",
        "leased",
        "running",
        "paused",
        "succeeded",
        "failed",
        "cancelled",
        "skipped",
        "expired",
    ]
    assert [(state.word, int(state)) for state in State] == [(word, code) for code, word in enumerate(words)]


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"[" * DEEPEST + b"]" * DEEPEST, False),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), True),
        (b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), True),
        (b"[" + b",".join([b"[[]]"] * 1000) + b"]", False),
        (b'["' + b"[" * 1000 + b'","\\\\","\\"' + b"[" * 1000 + b'"]', False),
        (b'["\\"",' + b"[" * DEEPEST + b"]" * DEEPEST + b"]", True),
    ],
    ids=["as deep as allowed", "deeper", "mappings", "many beside each other", "brackets in texts", "behind a text"],
)
def test_what_is_kept_may_be_nested_so_deeply(text, deep):
    msgspec.json.decode(text)
    if not deep:
        check_nesting(text, "task")
        return
    with pytest.raises(InvalidInput, match="task: it is nested too deeply"):
        check_nesting(text, "task")

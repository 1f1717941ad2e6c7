"""What a task file means: trees, edges, levels, defaults, parameters (C1 C2 C3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.domain.spec import RetrySpec, TaskSpec
from headway.domain.task import Edge, When
from headway.errors import ImpossibleTree, InvalidInput, NotFound
from headway.treefile import Tree, load, load_file

NIGHTLY = """
nightly:
  task:
    schedule: 300
    executable: ./report.py
    logger: syslog
    attempts: 3
    retry: {interval: 10s, backoff: 2, max: 5m}
    execution_cap: 10m
    delay_tolerance: 1h
    resources: regular
    fetch:
      executable: ./fetch.sh
    clean:
      executable: ./clean.js
      download:
        executable: ./download.sh
"""


def one(text: str, **params: str) -> Tree:
    (tree,) = load(text, params=params)
    return tree


def levels(tree: Tree) -> dict[str, int]:
    return {task.name: task.level for task in tree.tasks}


def test_a_mapping_that_is_no_keyword_is_a_subtask_and_runs_before_its_parent() -> None:
    tree = one(NIGHTLY)
    assert tree.name == "nightly"
    assert tree.after == {"task": ["fetch", "clean"], "fetch": [], "clean": ["download"], "download": []}
    assert levels(tree) == {"download": 0, "fetch": 1, "clean": 1, "task": 2}


def test_every_task_remembers_where_it_stood() -> None:
    tree = one(NIGHTLY)
    assert {task.name: (task.line, task.column) for task in tree.tasks} == {
        "task": (3, 3), "fetch": (12, 5), "clean": (14, 5), "download": (16, 7),
    }  # fmt: skip


def test_the_schedule_and_the_logger_are_kept_aside() -> None:
    tree = one(NIGHTLY)
    assert tree.schedule is not None
    assert tree.schedule.schedule == 300
    assert {task.name: task.spec.logger for task in tree.tasks}["task"] == "syslog"


def test_a_spec_carries_its_name_and_its_edges() -> None:
    specs = {task.name: task.spec for task in one(NIGHTLY).tasks}
    assert specs["task"].after == ["fetch", "clean"]
    assert specs["task"].retry == RetrySpec(interval="10s", backoff=2, max="5m")
    assert specs["download"] == TaskSpec(name="download", executable="./download.sh", input=specs["download"].input)
    assert bytes(specs["download"].input) == b"null"


def test_a_file_whose_top_keys_are_keywords_is_one_task() -> None:
    tree = one("name: hello\ncommand: [echo, 1.10, hello]\nattempts: 3\n")
    assert tree.name == "hello"
    assert [task.name for task in tree.tasks] == ["hello"]
    assert tree.tasks[0].spec.command == ["echo", "1.10", "hello"]


def test_one_task_without_a_name_is_called_after_what_it_runs() -> None:
    (tree,) = load("executable: ./report.py\nfetch: {executable: ./fetch.sh}\n", source="night/run.yaml")
    assert tree.name == "report.py"
    assert tree.after == {"report.py": ["fetch"], "fetch": []}


def test_a_list_without_a_name_is_called_after_its_file() -> None:
    (tree,) = load("sequence: [./a.sh]\n", source="night/run.yaml")
    assert tree.name == "run"


def test_json_is_read_too_even_with_tabs() -> None:
    tree = one('{\n\t"nightly": {\n\t\t"task": {"command": ["true"], "input": {"a": [1, null]}}\n\t}\n}')
    assert bytes(tree.tasks[0].spec.input) == b'{"a":[1,null]}'


def test_further_tasks_stand_beside_the_root_and_are_joined_by_after() -> None:
    tree = one("""
t:
  task: {command: a, sub: {command: b}}
  later:
    command: c
    after: [task, {task: sub, when: done}]
  alarm:
    command: d
    after: {task: task, when: failed}
""")
    after = {task.name: task.after for task in tree.tasks}
    assert after["later"] == [Edge("task"), Edge("sub", When.DONE)]
    assert after["alarm"] == [Edge("task", When.FAILED)]
    assert levels(tree) == {"sub": 0, "task": 1, "later": 2, "alarm": 2}


def test_an_edge_to_a_subtask_may_be_of_another_kind() -> None:
    tree = one("t:\n  task:\n    command: a\n    after: [{task: sub, when: done}]\n    sub: {command: b}\n")
    assert tree.tasks[0].after == [Edge("sub", When.DONE)]


def test_a_number_that_is_no_name_is_the_id_of_an_earlier_task() -> None:
    tree = one("t:\n  a: {command: a, after: 1234567890123456789}\n")
    assert tree.tasks[0].after == [Edge(1234567890123456789)]
    assert tree.tasks[0].upstream == []


def test_a_sequence_runs_one_after_another_and_a_parallel_list_in_tandem() -> None:
    tree = one("""
t:
  task:
    command: last
    sequence:
      - first: {command: a}
      - parallel: [{name: left, command: b}, ./right.sh]
      - third
    third: {command: c}
""")
    assert tree.after == {
        "task": ["third"], "first": [], "left": ["first"], "right.sh": ["first"], "third": ["left", "right.sh"],
    }  # fmt: skip
    assert levels(tree) == {"first": 0, "left": 1, "right.sh": 1, "third": 2, "task": 3}


def test_an_item_of_a_sequence_waits_with_everything_below_it() -> None:
    tree = one("""
t:
  sequence:
    - first: {command: a}
    - second: {command: b, below: {command: c}}
""")
    assert tree.after == {"first": [], "second": ["below"], "below": ["first"]}


def test_a_tree_may_be_a_list_alone() -> None:
    tree = one("sequence: [./a.sh, ./b.sh, ./a.sh]\n")
    assert tree.after == {"a.sh": [], "b.sh": ["a.sh"], "a.sh-2": ["b.sh"]}


def test_a_group_can_be_named_and_waited_for() -> None:
    tree = one("""
t:
  both: {parallel: [{name: a, command: x}, {name: b, command: x}], after: zero}
  zero: {command: x}
  last: {command: x, after: both}
""")
    assert tree.after == {"zero": [], "last": ["a", "b"], "a": ["zero"], "b": ["zero"]}


def test_subtasks_are_a_mapping_or_a_list() -> None:
    by_name = one("t:\n  task:\n    command: x\n    subtasks: {a: {command: y}, b: {command: y}}\n")
    listed = one("t:\n  task:\n    command: x\n    subtasks: [{name: a, command: y}, b: {command: y}]\n")
    assert by_name.after == listed.after == {"task": ["a", "b"], "a": [], "b": []}


def test_defaults_reach_every_task_below_and_a_task_has_the_last_word() -> None:
    tree = one("""
defaults: {attempts: 2, env: {A: 1, B: 2}}
t:
  defaults: {attempts: 3, retry: {backoff: 3}}
  task:
    command: x
    env: {B: 3}
    retry: {interval: 5}
    sub: {command: y, attempts: 5}
""")
    task, sub = (task.spec for task in tree.tasks)
    assert (task.attempts, sub.attempts) == (3, 5)
    assert (task.env, sub.env) == ({"A": "1", "B": "3"}, {"A": "1", "B": "2"})
    assert task.retry is not None
    assert (task.retry.interval, task.retry.backoff) == (5, 3)


def test_anchors_and_merge_keys_share_what_a_task_says() -> None:
    tree = one("""
x-base: &base {command: [run], attempts: 4, env: {A: "1"}}
t:
  a: {<<: *base, attempts: 2}
  b: {<<: [{args: [b]}, *base]}
""")
    a, b = (task.spec for task in tree.tasks)
    assert (a.command, a.attempts, a.env) == (["run"], 2, {"A": "1"})
    assert (b.command, b.attempts, b.args) == (["run"], 4, ["b"])


def test_parameters_have_defaults_and_can_be_given() -> None:
    text = """
parameters: {day: today, count: 3}
t:
  parameters: {place: here}
  task:
    command: echo ${day} ${place} ${HOME} $${day}
    attempts: ${count}
    input:
      whole: "${count}"
      number: ${count}
      part: day-${day}
"""
    spec = one(text, day="monday", place="there").tasks[0].spec
    assert spec.command == "echo monday there ${HOME} ${day}"
    assert spec.attempts == 3
    assert json.loads(bytes(spec.input)) == {"whole": "3", "number": 3, "part": "day-monday"}


def test_a_parameter_need_not_be_declared_when_it_is_given() -> None:
    assert one("command: echo ${day}\n", day="x").tasks[0].spec.command == "echo x"


def test_several_trees_stand_in_one_file_and_in_several_documents() -> None:
    trees = load("a:\n  t: {command: x}\nb:\n  t: {command: x}\n---\nc: {command: x}\n")
    assert [tree.name for tree in trees] == ["a", "b", "c"]
    assert trees[2].tasks[0].name == "c"


def test_the_schedule_of_a_subtask_may_be_once_for_each_run() -> None:
    assert one("t:\n  task:\n    command: x\n    sub: {command: y, schedule: 0}\n").schedule is None


def test_a_subtask_may_run_more_often_than_its_tree_and_then_runs_by_itself_too() -> None:
    tree = one(
        "t:\n  task:\n    schedule: 300\n    command: x\n    a: {command: y, schedule: 60}\n    b: {command: z, schedule: 5m}\n"
    )
    assert {name: spec.schedule for name, spec in tree.parts.items()} == {"a": 60}  # b runs as often as the tree: once for each run


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        ("300", "600"),
        ("daily", "weekly"),
        ("'0 3 * * *'", "'0 3 * * MON-FRI'"),
        ("hourly", "'0 */2 * * *'"),
        ("monthly", "annually"),
    ],
)
def test_a_subtask_scheduled_less_often_than_what_waits_for_it_is_refused_with_the_chain(parent: str, child: str) -> None:
    below = f"    mid:\n      command: y\n      low: {{command: z, schedule: {child}}}\n"
    text = f"t:\n  task:\n    schedule: {parent}\n    command: x\n{below}"
    with pytest.raises(ImpossibleTree, match=r"'low' .* less often than 'task'") as caught:
        one(text)
    assert caught.value.extra["chain"] == ["low", "mid", "task"]
    assert caught.value.extra["line"] == 7


@pytest.mark.parametrize(
    ("parent", "child"), [("weekly", "daily"), ("monthly", "weekly"), ("monthly", "monthly"), ("'0 9 * * 1-5'", "daily")]
)
def test_a_subtask_scheduled_as_often_or_more_often_is_fine(parent: str, child: str) -> None:
    tree = one(f"t:\n  task:\n    schedule: {parent}\n    command: x\n    low: {{command: z, schedule: {child}}}\n")
    assert levels(tree) == {"low": 0, "task": 1}


def test_between_two_subtasks_the_rarer_one_below_is_refused_too() -> None:
    below = "    mid:\n      command: y\n      schedule: 1h\n      low: {command: z, schedule: 6h}\n"
    text = f"t:\n  task:\n    schedule: daily\n    command: x\n{below}"
    with pytest.raises(ImpossibleTree, match=r"'low' .* less often than 'mid'"):
        one(text)


@pytest.mark.parametrize("every", ["0", "300", "10m", "daily", "annually", "'0 3 * * *'"])
def test_a_schedule_is_seconds_a_word_or_cron(every: str) -> None:
    tree = one(f"command: x\nschedule: {every}\ntimezone: Europe/Berlin\nstart: 2026-11-15T03:00:00Z\noverlap: queue\n")
    assert tree.schedule is not None
    assert (tree.schedule.overlap, tree.schedule.misfire) == ("queue", "one")


def test_a_tree_may_be_nested_to_any_depth() -> None:
    depth = 2000
    text = "".join(f"{'{'}command: x, t{number}: " for number in range(depth)) + "{command: x}" + "}" * depth
    tree = one(f"n: {text}")
    assert max(levels(tree).values()) == depth


def test_words_that_other_versions_of_yaml_read_as_something_else_are_texts() -> None:
    spec = one("command: [echo, yes, on, 012, 1e3]\nlabels: {day: 2026-01-01, country: no}\n").tasks[0].spec
    assert spec.command == ["echo", "yes", "on", "012", "1e3"]
    assert spec.labels == {"day": "2026-01-01", "country": "no"}


def test_paths_in_a_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("")
    file = tmp_path / "tree.yaml"
    file.write_text("""
t:
  a: {executable: ./run.sh, workdir: out}
  b: {executable: run.sh}
  d: {executable: lib/gone.sh}
  e: {function: "work.py:main"}
""")
    (tree,) = load_file(file)
    specs = {task.name: task.spec for task in tree.tasks}
    assert specs["a"].executable == specs["b"].executable == str(tmp_path / "run.sh")
    assert specs["a"].workdir == str(tmp_path / "out")
    assert specs["e"].function == f"{tmp_path}/work.py:main"
    assert [w for w in tree.warnings if "lib/gone.sh is not on this machine" in w]


def test_a_file_that_is_not_there_or_no_text_is_an_answer_too(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        load_file(tmp_path / "nothing.yaml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_file(tmp_path)
    broken = tmp_path / "latin1.yaml"
    broken.write_bytes(b"command: x\nname: caf\xe9\n")
    with pytest.raises(InvalidInput, match=r"latin1\.yaml:2:10: the byte 0xe9 is not UTF-8"):
        load_file(broken)

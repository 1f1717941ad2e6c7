"""Trees on a real Headway: the examples, repair of what failed, trees from Python, streams (C1 C3 C5)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Client, Tree
from tests.support.packages import need
from tests.support.upped import Upped, upped

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("trees")) as found:
        yield found


def run(running: Upped, example: str, **parameters: object) -> subprocess.CompletedProcess[str]:
    given = [word for key, value in parameters.items() for word in ("--param", f"{key}={value}")]
    return running.headway("run", str(EXAMPLES / example), *given)


def test_a_photo_is_published_in_as_many_sizes_as_its_width_allows(running, tmp_path):
    done = run(running, "photos.yaml", folder=tmp_path, width=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"
    assert sorted(path.name for path in (tmp_path / "public").iterdir()) == ["128.ppm", "256.ppm", "64.ppm"]


def test_what_failed_of_a_tree_is_repaired_and_only_that_runs_again(running, tmp_path):
    failed = run(running, "photos.yaml", folder=tmp_path, width=200, spoil=64)
    assert failed.returncode == 1
    assert "64.ppm is cut short" in failed.stderr
    [listed] = json.loads(running.headway("ls", "--trees", "--name", "photos", "-n", "1", "--json").stdout)["trees"]
    assert f"`headway retry {listed['id']}`" in failed.stderr
    with Client(running.url, running.token) as client:
        tree = client.trees(name="photos", limit=1).trees[0]
        before = {task.name: task for task in client.iterate(tree=tree.id)}
        command = [sys.executable, EXAMPLES / "photos" / "encode.py", str(tmp_path), "64"]
        subprocess.run(command, env={"HEADWAY_RESULT": str(tmp_path / "result")}, check=True)
        again = running.headway("retry", tree.id)
        assert again.returncode == 0, again.stderr
        assert running.headway("wait", tree.id).returncode == 0
        after = {task.name: task for task in client.iterate(tree=tree.id)}
    assert {name for name in after if after[name].attempt > before[name].attempt} == {"check", "publish"}
    assert {task.id for task in after.values()} == {task.id for task in before.values()}
    assert (tmp_path / "public" / "64.ppm").exists()


def test_a_tree_is_found_and_its_id_is_not_mistaken_for_a_tasks(running, tmp_path):
    (tmp_path / "pair.yaml").write_text("pair:\n  a: {command: echo a}\n  b: {command: echo b, after: a}\n")
    assert running.headway("run", str(tmp_path / "pair.yaml")).returncode == 0
    [tree] = running.headway("ls", "--trees", "--name", "pair", "-o", "quiet").stdout.split()
    assert tree in running.headway("ls", "--trees").stdout
    names = {task["name"] for task in json.loads(running.headway("ls", "--tree", tree, "--json").stdout)["tasks"]}
    assert names == {"a", "b"}
    for command in ("logs", "result", "explain", "pause"):
        said = running.headway(command, tree)
        assert said.returncode == 1
        assert f"{tree} is a tree, not a task" in said.stderr
        assert f"headway ls --tree {tree}" in said.stderr


def test_the_nightly_report_passes_results_through_four_languages(running):
    for language in ("nodejs", "perl"):
        need(language)
    done = run(running, "nightly.yaml")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"day": "2026-11-15", "customers": 3, "total": 42.75}


def test_a_tree_put_together_in_python_runs_and_hands_results_on(running, tmp_path):
    script = tmp_path / "photos.py"
    script.write_text(
        """
import sys
from headway import Client, Tree, current, task

@task
def sizes(width):
    return [size for size in (64, 128, 256) if size < width]

@task(with_results=True)
def publish():
    return sorted(current().dependencies["encode"])

def encode(size):
    return size * 2

if __name__ == "__main__":
    with Client(sys.argv[1], sys.argv[2]):
        tree = Tree("photos from python", attempts=2)
        first = tree.add(sizes, 200)
        many = tree.add(encode, name="encode", for_each=first)
        tree.add(publish, after=[many])
        tree.add(command=["false"], name="never", after=[many.failed])
        run = tree.submit()
        view = run.wait(timeout=100)
        print(view.state, [level.total for level in view.levels], run.result("publish"))
"""
    )
    done = subprocess.run([sys.executable, script, running.url, running.token], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "succeeded [1, 3, 2] [128, 256]", done.stderr


def test_a_wait_for_a_tree_ends_when_its_time_is_over(running):
    with Client(running.url, running.token):
        tree = Tree("later")
        tree.add(command=["true"], at="2099-01-01T00:00:00Z")
        run = tree.submit()
        with pytest.raises(TimeoutError, match=f"tree {run.id} has not ended after 0.2 s"):
            run.wait(timeout=0.2)
        assert run.cancel().state == run.wait(timeout=100).state == "cancelled"


def test_a_tree_of_twenty_thousand_lines_is_streamed_and_cancelled_whole(running):
    with Client(running.url, running.token) as client:
        leaves = [{"name": f"leaf {n}", "command": ["true"], "at": "2099-01-01T00:00:00Z"} for n in range(20_000)]
        roots = [{"name": f"root {n}", "command": ["true"], "after": [f"leaf {m}" for m in range(n, 20_000, 100)]} for n in range(100)]
        accepted = client.stream_tree("wide", [*roots, *leaves], levels="strict")
        assert accepted.count == 20_100
        view = client.tree(accepted.tree or "")
        assert [(level.total, level.left) for level in view.levels] == [(20_000, 20_000), (100, 100)]
        view = client.cancel_tree(accepted.tree or "")
        assert (view.state, view.left, [level.cancelled for level in view.levels]) == ("cancelled", 0, [20_000, 100])


BAD_TREES: list[tuple[str, str]] = [
    ("{", "ends too early"),
    ("[]", "is a list, expected a mapping"),
    ('{"tasks": []}', "name"),
    ('{"name": "", "tasks": [{"command": ["x"]}]}', "name"),
    ('{"name": "t"}', "tasks"),
    ('{"name": "t", "tasks": []}', "empty"),
    ('{"name": "t", "tasks": {}}', "tasks"),
    ('{"name": "t", "tasks": [{}]}', "nothing to run"),
    ('{"name": "t", "tasks": [{"command": ["x"], "function": "a:b"}]}', "one thing"),
    ('{"name": "t", "tasks": [{"comand": ["x"]}]}', "did you mean"),
    ('{"name": "t", "taks": []}', "did you mean"),
    ('{"name": "t", "levels": "stric", "tasks": [{"command": ["x"]}]}', "strict"),
    ('{"name": "t", "tasks": [{"name": "a", "command": ["x"], "after": ["a"]}]}', "cycle: a"),
    ('{"name": "t", "tasks": [{"name": "a", "command": ["x"], "after": ["b"]}, {"name": "b", "command": ["x"], "after": ["a"]}]}', "cycle"),
    ('{"name": "t", "tasks": [{"name": "a", "command": ["x"], "after": ["nobody"]}]}', "nobody"),
    ('{"name": "t", "tasks": [{"command": ["x"], "after": [{"task": "a", "when": "maybe"}]}]}', "succeeded, done or failed"),
    ('{"name": "t", "tasks": [{"name": "a", "command": ["x"]}, {"command": ["x"], "after": ["a", "a"]}]}', "twice"),
    ('{"name": "t", "tasks": [{"name": "a", "command": ["x"]}, {"name": "a", "command": []}]}', "nothing to run"),
    ('{"name": "t", "tasks": [{"command": ["x"], "for_each": 7}]}', "for_each"),
    ('{"name": "t", "tasks": [{"command": ["x"], "for_each": {"result": "a"}}]}', "result_of"),
    ('{"name": "t", "tasks": [{"command": "echo ${item}", "for_each": [1]}]}', "shell"),
    ('{"name": "t", "tasks": [{"command": ["x"], "attempts": "many"}]}', "attempts"),
    ('{"name": "t", "tasks": [{"command": ["x"], "with_results": "yes"}]}', "with_results"),
    ('{"name": "t\\u0000", "tasks": [{"command": ["x"]}]}', "name"),
    ('{"name": "t", "tasks": [{"command": ["x\\u0000"]}]}', "NUL"),
    ('{"name": "t", "tasks": [{"command": ["x"], "after": [999]}]}', "999"),
]


def test_a_bad_tree_is_refused_in_words_and_leaves_nothing(running):
    before = asyncio.run(running.fetchval(EVERYTHING))
    wrong = []
    for body, words in BAD_TREES:
        request = urllib.request.Request(
            f"{running.url}/v1/trees", body.encode(), {"authorization": f"Bearer {running.token}", "content-type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=120)
        problem = json.load(caught.value)
        assert caught.value.code in (400, 409, 413, 422), (body, problem)
        if words not in f"{problem['detail']} {problem.get('hint')} {problem.get('field')}":
            wrong.append((body, words, problem))
    assert not wrong
    assert asyncio.run(running.fetchval(EVERYTHING)) == before


EVERYTHING = (
    "select (select count(*) from headway.task_anywhere) + (select count(*) from headway.tree) + (select count(*) from headway.edge)"
    " + (select count(*) from headway.tree_level) + (select count(*) from headway.fanout)"
)

"""The command line as users meet it: a real `headway up`, real tasks, real exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.upped import COMMAND, Upped, clean_environment, upped
from tests.support.waiting import until

TREE = """
nightly:
  task:
    command: echo '"all done"' > $HEADWAY_RESULT
    fetch:
      command: [echo, fetched]
    clean:
      command: echo cleaned
      download:
        command: [echo, downloaded]
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("up")) as running:
        yield running


def headway(up: Upped, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, env=environment(up))


def environment(up: Upped) -> dict[str, str]:
    return clean_environment(HEADWAY_DATA=str(up.folder))


def submit(up: Upped, *words: str) -> str:
    said = headway(up, "submit", "-o", "quiet", *words)
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def value(said: subprocess.CompletedProcess[str]) -> Any:
    assert said.stdout, said.stderr
    return json.loads(said.stdout)


def start(up: Upped, *words: str) -> subprocess.Popen[str]:
    command = [*COMMAND, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(up))


def test_run_gives_the_output_the_result_and_the_exit_code_of_the_work(up: Upped) -> None:
    said = headway(up, "run", "--", "sh", "-c", "echo out; echo err >&2; echo '{\"n\": 1}' > $HEADWAY_RESULT")
    assert (said.returncode, said.stdout) == (0, 'out\n{"n": 1}\n')
    assert "err\n" in said.stderr
    assert headway(up, "run", "--", "sh", "-c", "exit 42").returncode == 42


def test_reports_of_progress_are_no_output(up: Upped) -> None:
    said = headway(up, "run", "--", "sh", "-c", "for i in 1 2 3; do echo headway progress $i/3 copying; done; echo copied")
    assert (said.returncode, said.stdout) == (0, "copied\n")
    assert "headway progress" not in said.stderr


def test_run_of_a_killed_task_leaves_with_the_code_a_shell_would_give(up: Upped) -> None:
    assert headway(up, "run", "--", "sh", "-c", "kill -KILL $$").returncode in (1, 137)


def test_run_of_a_program_that_is_not_there_says_so(up: Upped) -> None:
    said = headway(up, "run", "--", "no-such-program")
    assert said.returncode == 1
    assert "'no-such-program' was not found" in said.stderr


def test_run_of_a_tree_shows_what_happens_and_prints_the_result_of_the_root_alone(up: Upped, tmp_path: Path) -> None:
    (tmp_path / "nightly.yaml").write_text(TREE)
    said = headway(up, "run", str(tmp_path / "nightly.yaml"))
    assert (said.returncode, said.stdout) == (0, '"all done"\n')
    for expected in ("download | downloaded", "clean    | cleaned", "nightly succeeded"):
        assert expected in said.stderr
    assert said.stderr.index("download: succeeded") < said.stderr.index("task: succeeded")


def test_run_of_a_tree_that_fails_names_the_task_and_leaves_with_its_code(up: Upped, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(TREE.replace("[echo, fetched]", "exit 9"))
    said = headway(up, "run", str(tmp_path / "bad.yaml"))
    assert said.returncode == 9
    assert "fetch failed" in said.stderr
    assert "task: skipped" in said.stderr


def test_ctrl_c_ends_the_work_and_all_its_processes(up: Upped, tmp_path: Path) -> None:
    pipe = tmp_path / "began"
    os.mkfifo(pipe)
    process = start(up, "run", "--", "sh", "-c", f"echo $$ > {pipe}; exec sleep 600")
    child = int(pipe.read_text())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "cancelled" in err
    assert not Path(f"/proc/{child}").exists()


def test_logs_follow_a_running_task_to_its_end(up: Upped, tmp_path: Path) -> None:
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    task = submit(up, "--", "sh", "-c", f"echo first; cat {pipe}; echo last >&2")
    follower = start(up, "logs", "-f", task)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"
    pipe.write_text("second\n")
    out, err = follower.communicate(timeout=120)
    assert (out, err, follower.returncode) == ("second\n", "last\n", 0)


def test_wait_times_out_with_124_and_returns_the_works_code_later(up: Upped, tmp_path: Path) -> None:
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    task = submit(up, "--", "sh", "-c", f"cat {pipe}; exit 5")
    assert headway(up, "wait", task, "--timeout", "100ms").returncode == 124
    pipe.write_text("now")
    assert headway(up, "wait", task, "--timeout", "1m").returncode == 5


def test_who_follows_work_that_does_not_begin_is_told_why_once(up: Upped, tmp_path: Path) -> None:
    assert headway(up, "queue", "create", "shut").returncode == 0
    assert headway(up, "queue", "pause", "shut").returncode == 0
    (tmp_path / "tree.yaml").write_text(
        "t:\n  root:\n    queue: shut\n    command: [echo, a]\n    leaf: {queue: shut, command: [echo]}\n"
    )
    (tmp_path / "inputs.ndjson").write_text("1\n2\n")
    task = submit(up, "--queue", "shut", "--", "true")
    followers = [
        start(up, "run", "--queue", "shut", "--", "true"),
        start(up, "run", str(tmp_path / "tree.yaml")),
        start(up, "run", "--queue", "shut", "--inputs", str(tmp_path / "inputs.ndjson"), "--", "true"),
        start(up, "wait", task),
    ]
    for follower in followers:
        assert "waits: queue shut is paused" in line_with(follower, "waits:")
        assert "headway queue resume shut" in line_with(follower, "hint:")
    assert headway(up, "queue", "resume", "shut").returncode == 0
    for follower in followers:
        _, rest = follower.communicate(timeout=120)
        assert follower.returncode == 0, rest
        assert "waits:" not in rest


def line_with(process: subprocess.Popen[str], word: str) -> str:
    """The next line with this word that the process writes to stderr."""
    assert process.stderr is not None
    late = threading.Timer(120, process.kill)
    late.start()
    try:
        return next(line for line in process.stderr if word in line)
    finally:
        late.cancel()


def test_wait_for_what_does_not_exist_ends_at_once(up: Upped) -> None:
    said = headway(up, "wait", "4711")
    assert said.returncode == 1
    assert "there is no task 4711" in said.stderr


def test_submit_takes_lines_of_tasks_and_ls_finds_them_by_label(up: Upped, tmp_path: Path) -> None:
    lines = tmp_path / "tasks.ndjson"
    spec = {"command": ["true"], "labels": {"batch": "b1"}}
    lines.write_text("\n".join(json.dumps({**spec, "name": f"part-{i}"}) for i in range(3)))
    ids = submit(up, str(lines)).split()
    assert headway(up, "wait", *ids, "--timeout", "1m").returncode == 0
    found = value(headway(up, "ls", "--label", "batch=b1", "--since", "1h", "--json"))
    assert [task["id"] for task in found["tasks"]] == sorted(ids, reverse=True)
    first = headway(up, "ls", "--label", "batch=b1", "-n", "2", "-o", "quiet").stdout.split()
    cursor = value(headway(up, "ls", "--label", "batch=b1", "-n", "2", "--json"))["next"]
    rest = headway(up, "ls", "--label", "batch=b1", "-n", "2", "--cursor", cursor, "-o", "quiet").stdout.split()
    assert first + rest == sorted(ids, reverse=True)


def test_ls_filters_by_state(up: Upped) -> None:
    task = submit(up, "--name", "finished-one", "--", "true")
    assert headway(up, "wait", task, "--timeout", "1m").returncode == 0
    said = headway(up, "ls", "--state", "succeeded", "--name", "finished-one", "-o", "quiet")
    assert (said.returncode, said.stdout) == (0, f"{task}\n")


def test_a_bad_field_is_refused_with_its_name_and_what_was_meant(up: Upped) -> None:
    said = headway(up, "submit", "--resources", "bsic", "--", "true")
    assert said.returncode == 65
    assert "there is no tier 'bsic'" in said.stderr
    assert "did you mean 'basic'?" in said.stderr


def test_an_amount_given_as_an_option_of_its_own_is_told_where_it_belongs(up: Upped) -> None:
    said = headway(up, "submit", "--memory", "1GiB", "--", "true")
    assert said.returncode == 64
    assert "--resources memory=" in said.stderr


def test_a_repeated_idempotency_key_gives_the_first_task_back_and_another_payload_is_refused(up: Upped) -> None:
    first = submit(up, "--idempotency-key", "k1", "--", "echo", "1")
    assert submit(up, "--idempotency-key", "k1", "--", "echo", "1") == first
    assert headway(up, "submit", "--idempotency-key", "k1", "--", "echo", "2").returncode == 65


def test_a_wrong_token_is_exit_code_77(up: Upped) -> None:
    env = clean_environment(HEADWAY_URL=up.url, HEADWAY_TOKEN="hw_tenant_wrong")
    said = subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, env=env)
    assert said.returncode == 77


def test_a_dead_letter_is_shown_sent_again_after_an_edit_and_purged(up: Upped) -> None:
    task = submit(up, "--name", "dies", "--", "sh", "-c", "test $FINE")
    assert headway(up, "wait", task, "--timeout", "1m").returncode == 1
    group = next(one for one in value(headway(up, "dead", "ls", "--json")) if one["name"] == "dies")
    assert (group["count"], group["example"]) == (1, task)
    assert "exit" in headway(up, "dead", "show", task).stdout
    assert headway(up, "dead", "retry", task, "--set", 'env={"FINE": "yes"}').stdout == "1 sent again\n"
    assert headway(up, "wait", task, "--timeout", "1m").returncode == 0
    other = submit(up, "--name", "dies-too", "--", "false")
    headway(up, "wait", other, "--timeout", "1m")
    assert headway(up, "dead", "purge", "--name", "dies-too", "--yes").stdout == "1 purged\n"


def test_cancel_ends_a_waiting_task(up: Upped) -> None:
    task = submit(up, "--at", "2099-01-01T00:00:00Z", "--", "true")
    assert value(headway(up, "cancel", task, "--json"))[0]["state"] == "cancelled"
    assert headway(up, "result", task).returncode == 1


def test_top_prints_one_frame_of_rates_queues_and_nodes(up: Upped) -> None:
    its_node(up)
    said = headway(up, "top", "--once")
    assert said.returncode == 0, said.stderr
    for expected in ("finished", "QUEUE", "delayable", "NODE", "nothing runs"):
        assert expected in said.stdout


def its_node(up: Upped) -> str:
    """The name of its node, which joins a moment after the server answers."""
    return str(until(lambda: value(headway(up, "node", "ls", "--json")))[0]["name"])


def test_nodes_queues_tiers_and_stats_answer(up: Upped) -> None:
    node = its_node(up)
    assert headway(up, "node", "show", node).stdout.startswith(f"node     {node}\n")
    assert headway(up, "queue", "ls", "-o", "quiet").stdout.split()[:4] == ["urgent", "delayable", "periodic", "off-peak"]
    assert headway(up, "tier", "ls", "-o", "quiet").stdout.split() == ["basic", "regular", "premium"]
    assert value(headway(up, "stats", "--json"))["servers"] == 1
    assert value(headway(up, "node", "drain", node, "--json"))["state"] == "draining"
    assert value(headway(up, "node", "undrain", node, "--json"))["state"] == "up"


def test_doctor_says_when_the_watch_on_disks_may_come_late(tmp_path: Path) -> None:
    """Nothing holds a task close to its limit without the right to a real-time policy: such a limit is not in order."""
    if os.geteuid() != 0 or (setpriv := shutil.which("setpriv")) is None:
        pytest.skip("needs root and setpriv to give that right up")
    words = [setpriv, "--bounding-set", "-sys_nice", *COMMAND, "doctor", "--json", "--data-dir", str(tmp_path)]
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, timeout=120)
    (found,) = [check for check in json.loads(done.stdout) if check["name"] == "disk limit"]
    assert (found["state"], "can pass their limit by a third" in found["found"]) == ("warn", True), found


def test_doctor_finds_a_running_up_in_order(up: Upped) -> None:
    its_node(up)
    checks = {check["name"]: check["state"] for check in value(headway(up, "doctor", "--json"))}
    assert (checks["server"], checks["agents"], checks["token"]) == ("ok", "ok", "ok")


def test_doctor_names_what_keeps_work_from_running_and_what_to_do(up: Upped, tmp_path: Path) -> None:
    headway(up, "queue", "create", "nights")
    headway(up, "queue", "pause", "nights")
    task = submit(up, "--queue", "nights", "--", "true")
    file = tmp_path / "often.yaml"
    file.write_text("often:\n  schedule: 1\n  task: {command: sleep 1000}\n")
    assert headway(up, "apply", str(file)).returncode == 0

    def skipped() -> bool:
        return "last firing skipped: an earlier run is still going" in headway(up, "schedule", "ls").stdout

    until(skipped)
    broken = submit(up, "--name", "breaks", "--", "sh", "-c", "echo no such customer >&2; exit 3")
    headway(up, "wait", broken)
    until(lambda: "queue nights" in headway(up, "doctor").stdout)  # queues are counted once a second
    checks = {check["name"]: check for check in value(headway(up, "doctor", "--json"))}
    assert checks["queue nights"]["todo"] == "headway queue resume nights"
    assert checks["schedule often"]["todo"] == "headway schedule show often"
    assert "no such customer" in checks["dead letters"]["found"] or "most often" in checks["dead letters"]["found"]
    said = headway(up, "explain", broken).stdout
    assert "it has failed: exit 3: no such customer; it took" in " ".join(said.split())
    assert f"headway retry {broken} sends it again" in said
    headway(up, "schedule", "delete", "often")
    for each in (task, *headway(up, "ls", "--state", "running", "--name", "task", "-o", "quiet").stdout.split()):
        headway(up, "cancel", each)


def test_a_node_that_is_up_is_not_forgotten(up: Upped) -> None:
    node = its_node(up)
    said = headway(up, "node", "rm", node)
    assert said.returncode == 1
    assert "is up, and may hold tasks" in said.stderr
    assert headway(up, "node", "show", node).returncode == 0


def test_run_without_a_server_brings_its_own_and_takes_it_away_again(tmp_path: Path) -> None:
    said = subprocess.run(
        [*COMMAND, "run", "--data-dir", str(tmp_path / "hw"), "--", "echo", "hello"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=120,
    )
    assert (said.returncode, said.stdout) == (0, "hello\n"), said.stderr
    assert not (tmp_path / "hw" / "up.json").exists()


def test_a_second_run_on_the_same_folder_joins_the_first(tmp_path: Path) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    os.mkfifo(began)
    os.mkfifo(go)
    command = [*COMMAND, "run", "--data-dir", str(tmp_path / "hw"), "--", "sh", "-c"]
    first = subprocess.Popen([*command, f"echo > {began}; cat {go}"], stdout=subprocess.PIPE, text=True, env=clean_environment())
    began.read_text()
    second = subprocess.run([*command, "echo joined"], capture_output=True, text=True, env=clean_environment(), timeout=120)
    assert (second.returncode, second.stdout) == (0, "joined\n"), second.stderr
    assert first.poll() is None
    go.write_text("first ends")
    out, _ = first.communicate(timeout=120)
    assert (first.returncode, out) == (0, "first ends\n")

"""Checkpoints and stages with a real agent: folders, values, what is refused, where a retry begins (H8)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import Client
from tests.support.confined import need_sandbox
from tests.support.upped import Upped, upped
from tests.support.waiting import until

AGAIN = {"attempts": 4, "retry": {"interval": 0.05, "backoff": 1, "jitter": 0}, "resources": {"cpus": 0.1}}
EXAMPLES = Path(__file__).parents[2] / "examples"
VALUES = Path(__file__).with_name("checkpoint_functions.py")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upped]:
    with upped(tmp_path_factory.mktemp("up") / "data", HEADWAY_MAX_CHECKPOINT="2MiB") as running:
        yield running


@pytest.fixture(scope="module")
def hw(up: Upped) -> Iterator[Client]:
    with Client(up.url, up.token) as client:
        yield client


def shell(hw: Client, text: str, *args: str, **fields: Any) -> Any:
    return hw.submit(command=["/bin/sh", "-c", text, "script", *args], **{**AGAIN, **fields})


def output(hw: Client, task: str, attempt: int | None = None) -> str:
    return "".join(line.text for line in hw.logs(task, attempt=attempt))


def outcomes(hw: Client, task: str) -> list[str | None]:
    return [attempt.outcome for attempt in hw.attempts(task)]


COUNT = """
cd "$HEADWAY_CHECKPOINT_DIR"
[ -e deep/er/n ] && n=$(cat deep/er/n) || n=0
echo "found $n"
mkdir -p deep/er
echo $((n + 1)) > deep/er/n.tmp && mv deep/er/n.tmp deep/er/n
echo junk > unfinished.tmp
[ $n = 3 ] && { ls unfinished.tmp 2>/dev/null; exit 0; }
exit $1
"""


def test_what_a_program_left_in_its_folder_is_there_in_the_next_attempt(hw):
    handle = shell(hw, COUNT, "3")
    view = handle.wait(timeout=120)
    assert view.state == "succeeded"
    assert [line for line in output(hw, handle.id).splitlines() if line.startswith("found")] == [f"found {n}" for n in range(4)]


def test_exit_code_85_goes_on_from_the_checkpoint_and_uses_no_attempt(hw):
    handle = shell(hw, COUNT, "85", attempts=1)
    assert handle.wait(timeout=120).state == "succeeded"
    assert outcomes(hw, handle.id) == ["requeued", "requeued", "requeued", "succeeded"]


def test_a_folder_of_a_sandboxed_program_comes_back_as_its_own(hw, tmp_path):
    need_sandbox(tmp_path)
    handle = shell(hw, COUNT, "85", isolation="sandbox")
    assert handle.wait(timeout=120).state == "succeeded"
    assert outcomes(hw, handle.id) == ["requeued", "requeued", "requeued", "succeeded"]


def test_a_folder_is_saved_while_its_program_runs(up, hw, tmp_path):
    """The program is killed without warning after its folder was saved."""
    text = """
    cd "$HEADWAY_CHECKPOINT_DIR"
    [ -e state ] && { cat state > "$HEADWAY_RESULT"; exit 0; }
    echo $$ > "$1.new"; mv "$1.new" "$1"
    echo 41 > state
    exec sleep 600
    """
    pid = tmp_path / "pid"
    handle = shell(hw, text, str(pid))
    while not saved(up):
        assert handle.view().state in ("ready", "leased", "running")
    assert handle.view().checkpoint_size
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert handle.result(timeout=120) == 41
    assert outcomes(hw, handle.id) == ["signal", "succeeded"]


def saved(up: Upped) -> bool:
    return bool(asyncio.run(up.fetchval("select exists (select from headway.checkpoint c join headway.task t on t.id = c.task)")))


HOSTILE = {
    "a link to a file": 'ln -s /etc/passwd "$HEADWAY_CHECKPOINT_DIR/x"',
    "a link to a folder": 'ln -s /etc "$HEADWAY_CHECKPOINT_DIR/x"',
    "a pipe": 'mkfifo "$HEADWAY_CHECKPOINT_DIR/x"',
    "too much": 'head -c 3000000 /dev/zero > "$HEADWAY_CHECKPOINT_DIR/x"',
    "no folder": 'rmdir "$HEADWAY_CHECKPOINT_DIR"; ln -s /etc "$HEADWAY_CHECKPOINT_DIR"',
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_folder_that_points_elsewhere_or_is_too_large_is_not_saved_and_the_task_is_told(hw, what):
    handle = shell(hw, f'{HOSTILE[what]}; ls -A "$HEADWAY_CHECKPOINT_DIR/" | wc -l; exit 3', attempts=1)
    assert handle.wait(timeout=120).exit_code == 3
    assert "[headway: the last checkpoint was not saved:" in output(hw, handle.id)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(up, hw):
    text = """
    cd "$HEADWAY_CHECKPOINT_DIR"
    [ -e n ] && n=$(cat n) || n=0
    echo "found $n"
    [ $HEADWAY_ATTEMPT -lt 3 ] || { echo $n > "$HEADWAY_RESULT"; exit 0; }
    echo $((n + 1)) > n
    exit 3
    """
    handle = shell(hw, text, retry={"interval": 300, "backoff": 1, "jitter": 0})  # it goes on when it is told
    newest = "select hash from headway.checkpoint where task = {} order by sequence desc limit 1"
    damage = "update headway.blob_chunk set data = data || '!' where hash = (" + newest + ") returning 1"
    for attempt in (1, 2):
        rests = f"select state = 1 and attempt = {attempt} from headway.task where id = {handle.id}"
        until(lambda: asyncio.run(up.fetchval(rests)))  # noqa: B023
        if attempt == 2:
            asyncio.run(up.fetchval(damage.format(handle.id)))
        assert up.headway("change", handle.id, "--set", "at=1").returncode == 0
    assert handle.result(timeout=120) == 1
    assert "a checkpoint was passed over" in output(hw, handle.id)


# --- stages


def stage(trail: Path, name: str, then: str = "true") -> dict[str, Any]:
    return {"name": name, "command": f'echo "$HEADWAY_STAGE" >> {trail}; {then}'}


def test_a_retry_begins_with_the_stage_that_failed(hw, tmp_path):
    trail, flag = tmp_path / "trail", tmp_path / "flag"
    stages = [
        stage(trail, "prepare"),
        stage(trail, "copy", f"[ -e {flag} ] || {{ touch {flag}; echo broken >&2; exit 7; }}"),
        stage(trail, "switch", 'echo 5 > "$HEADWAY_RESULT"'),
    ]
    handle = hw.submit(stages=stages, **AGAIN)
    assert handle.result(timeout=120) == 5
    assert trail.read_text().split() == ["prepare", "copy", "copy", "switch"]
    first, _ = hw.attempts(handle.id)
    assert first.error is not None
    assert first.error.message == "stage 'copy': broken"
    assert first.exit_code == 7
    view = handle.view()
    assert (view.stages, view.stages_done) == (["prepare", "copy", "switch"], 3)


def test_stages_share_a_folder_a_cap_and_a_place_in_the_output(hw):
    handle = hw.submit(stages=["echo one; echo kept > file", "cat file; echo two"], **AGAIN)
    assert handle.wait(timeout=120).state == "succeeded"
    assert output(hw, handle.id).split() == ["one", "kept", "two"]
    assert outcomes(hw, handle.id) == ["succeeded"]


def test_a_dead_letter_that_is_sent_again_begins_with_the_stage_that_failed(hw, tmp_path):
    trail, flag = tmp_path / "trail", tmp_path / "flag"
    handle = hw.submit(stages=[stage(trail, "a"), stage(trail, "b", f"[ -e {flag} ]"), stage(trail, "c")], resources={"cpus": 0.1})
    assert handle.wait(timeout=120).state == "failed"
    flag.touch()
    hw.retry(handle.id)
    assert handle.wait(timeout=120).state == "succeeded"
    assert trail.read_text().split() == ["a", "b", "b", "c"]


def test_a_stage_that_asks_to_be_requeued_runs_again_and_those_before_it_do_not(hw, tmp_path):
    trail, flag = tmp_path / "trail", tmp_path / "flag"
    stages = [stage(trail, "a"), stage(trail, "b", f"[ -e {flag} ] || {{ touch {flag}; exit 85; }}")]
    handle = hw.submit(stages=stages, resources={"cpus": 0.1})
    assert handle.wait(timeout=120).state == "succeeded"
    assert trail.read_text().split() == ["a", "b", "b"]


def test_a_staged_task_is_cancelled_in_any_stage_and_ends_at_its_cap(hw, tmp_path):
    trail = tmp_path / "trail"
    handle = hw.submit(stages=[stage(trail, "a"), stage(trail, "b", "exec sleep 600"), stage(trail, "c")], **AGAIN)
    while not trail.exists() or "b" not in trail.read_text():
        assert handle.view().state in ("ready", "leased", "running")
    view = handle.view()
    assert (view.what, view.stages_done) == ("a → b → c", 1)
    handle.cancel()
    assert handle.wait(timeout=120).state == "cancelled"
    capped = hw.submit(stages=["sleep 0.4", "exec sleep 600"], execution_cap=0.8, resources={"cpus": 0.1})
    view = capped.wait(timeout=120)
    assert view.outcome == "cap_exceeded"
    assert trail.read_text().split() == ["a", "b"]


def test_a_stage_that_ends_well_when_it_is_asked_to_end_is_not_followed_by_the_next(hw, tmp_path):
    trail = tmp_path / "trail"
    polite = "trap 'exit 0' TERM; while true; do sleep 0.05; done"
    handle = hw.submit(stages=[stage(trail, "a", polite), stage(trail, "b")], **AGAIN)
    while not trail.exists():
        assert handle.view().state in ("ready", "leased", "running")
    handle.cancel()
    assert handle.wait(timeout=120).state == "cancelled"
    assert trail.read_text().split() == ["a"]


def test_stages_come_from_the_command_line_and_from_a_file(up, tmp_path):
    file = tmp_path / "staged.yaml"
    (tmp_path / "two.sh").write_text("echo two\n")
    file.write_text("name: staged\nstages:\n  - {name: first, command: echo one}\n  - {executable: ./two.sh}\n")
    done = up.headway("run", str(file))
    assert (done.returncode, done.stdout.split()) == (0, ["one", "two"]), done.stderr
    done = up.headway("run", "--stage", "a=echo 1", "--stage", "b=echo 2; exit 6")
    assert (done.returncode, done.stdout.split()) == (6, ["1", "2"]), done.stderr


# --- values


def test_a_function_saves_values_and_reads_the_last_one_back(hw):
    handle = hw.submit(function=f"{VALUES}:climb", input=[5], **{**AGAIN, "attempts": 6})
    assert handle.result(timeout=120) == [1, 2, 3, 4, 5]


def test_a_python_program_saves_values_into_its_folder(hw, tmp_path):
    program = tmp_path / "climb.py"
    program.write_text(
        "import headway, json, os, sys\n"
        "me = headway.current()\n"
        "n = me.last_checkpoint(default=0)\n"
        "me.checkpoint(n + 1)\n"
        "assert me.last_checkpoint() == n + 1\n"
        "sys.exit(3) if n < 2 else open(os.environ['HEADWAY_RESULT'], 'w').write(json.dumps(n))\n"
    )
    assert hw.submit(command=[sys.executable, str(program)], **AGAIN).result(timeout=120) == 2


def test_a_value_can_be_bytes_and_must_be_something_that_can_be_saved(hw):
    handle = hw.submit(function=f"{VALUES}:saves", input=["bytes"], **AGAIN)
    assert handle.result(timeout=120) == "b'\\x00\\xff'"
    failed = hw.submit(function=f"{VALUES}:saves", input=["object"], resources={"cpus": 0.1}).wait(timeout=120)
    assert failed.error is not None
    assert failed.error.type == "TypeError"
    large = hw.submit(function=f"{VALUES}:saves", input=["large"], resources={"cpus": 0.1}).wait(timeout=120)
    assert large.error is not None
    assert "max_checkpoint" in json.dumps(large.error.message)


# --- the examples


def test_the_training_goes_on_after_its_crash_from_the_last_epoch(up):
    done = up.headway("run", str(EXAMPLES / "training.yaml"), "--param", "epochs=12", "--param", "crash=9", timeout=120)
    assert done.returncode == 0, done.stderr
    assert "going on after epoch 9" in done.stdout


def test_the_migration_repeats_only_the_stage_that_failed(up, tmp_path):
    done = up.headway("run", str(EXAMPLES / "migration.yaml"), "--param", f"folder={tmp_path}", timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "stages").read_text().split() == ["export", "convert", "convert", "check"]
    assert (tmp_path / "customers.db").resolve() == (tmp_path / "new.db").resolve()

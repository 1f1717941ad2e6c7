"""An agent and real programs: what they see, what is told of them, and how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.agents import AgentProcess, alive, running_agent
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def agent(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADWAY_TOKEN", "hw_agent_secret")
        with running_agent(tmp_path_factory.mktemp("agent"), server.url, max_output=4096) as running:
            yield running


def shell(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text)


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


@pytest.mark.usefixtures("agent")
def test_a_program_reads_its_input_and_leaves_a_result(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=shell('cp "$HEADWAY_INPUT" "$HEADWAY_RESULT"')), {"a": [1, 2]})
    assert server.outcome(ref) is Outcome.SUCCEEDED
    assert json.loads(server.finished[ref].result or b"") == {"a": [1, 2]}
    assert server.finished[ref].exit_code == 0


@pytest.mark.usefixtures("agent")
def test_a_result_that_is_not_json_is_kept_as_text(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=shell('echo "it is 5 o\'clock" > $HEADWAY_RESULT')))
    assert json.loads(server.finished[ref].result or b"") == "it is 5 o'clock\n"


@pytest.mark.usefixtures("agent")
def test_a_program_sees_its_task_and_never_the_token(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=("env",), env={"MINE": "yes"}))
    seen = dict(line.split("=", 1) for line in server.text(ref).splitlines())
    assert seen["HEADWAY_TASK_ID"] == str(ref[0])
    assert seen["HEADWAY_ATTEMPT"] == "1"
    assert seen["MINE"] == "yes"
    assert {"HEADWAY_INPUT", "HEADWAY_RESULT", "HEADWAY_CHECKPOINT_DIR", "HEADWAY_DEADLINE", "PATH"} <= seen.keys()
    assert "hw_agent_secret" not in server.text(ref)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("text", "outcome", "code"),
    [
        ("exit 3", Outcome.ERROR, 3),
        ("exit 75", Outcome.TRY_LATER, 75),
        ("exit 85", Outcome.REQUEUED, 85),
        ("kill -9 $$", Outcome.SIGNAL, 137),
    ],
)
def test_the_exit_status_is_the_outcome(server: ScriptedServer, text: str, outcome: Outcome, code: int) -> None:
    ref = server.run(server.define(command=shell(text)))
    assert server.outcome(ref) is outcome
    assert server.finished[ref].exit_code == code


@pytest.mark.usefixtures("agent")
def test_the_end_of_stderr_explains_a_failure(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=shell("echo first >&2; echo no such customer >&2; exit 1")))
    assert server.error(ref) == {"type": "exit 1", "message": "no such customer", "traceback": "first\nno such customer"}


@pytest.mark.usefixtures("agent")
def test_what_cannot_be_started_says_why(server: ScriptedServer, tmp_path: Path) -> None:
    unknown = server.run(server.define(command=("no-such-program",)))
    missing = server.run(server.define(executable=str(tmp_path / "missing.sh")))
    plain = tmp_path / "plain.txt"
    plain.write_text("hello")
    nameless = server.run(server.define(executable=str(plain)))
    for ref, words in ((unknown, "not found"), (missing, "does not exist"), (nameless, "set `interpreter`")):
        assert server.outcome(ref) is Outcome.NOT_STARTABLE
        assert words in server.error(ref)["message"]


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a", "#!/usr/bin/not-here\n", "names '/usr/bin/not-here', which is not on this node"),
        ("a", "#!/usr/bin/env not-here\n", "asks for 'not-here', which was not found on this node"),
        ("a", "#!/usr/bin/env sh\r\necho\r\n", "ends with a carriage return, as on Windows; save it with Unix line ends"),
        ("a.sh", "echo one\r\nif true; then\r\n", "end with carriage returns, as on Windows, which sh does not understand"),
    ],
)
def test_a_script_that_cannot_run_here_says_why_before_it_starts(
    server: ScriptedServer, tmp_path: Path, name: str, text: str, said: str
) -> None:
    """By the kernel's word it would be "no such file", by that of `env` or a shell an error of the task."""
    script = tmp_path / name
    script.write_bytes(text.encode())
    script.chmod(0o755)
    fields: list[dict[str, Any]] = [{"executable": str(script)}]
    if name == "a":
        fields.append({"command": (str(script),)})
    for each in fields:
        ref = server.run(server.define(**each))
        assert server.outcome(ref) is Outcome.NOT_STARTABLE
        assert said in server.error(ref)["message"]


@pytest.mark.usefixtures("agent")
def test_scripts_run_by_suffix_by_first_line_and_by_name(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import sys; print('python', sys.argv[1])")
    (tmp_path / "b").write_text("#!/usr/bin/env -S sh -e\necho first line $1")
    (tmp_path / "c").write_text("echo named $1")
    (tmp_path / "d").write_text("echo no first line $1")
    (tmp_path / "d").chmod(0o755)
    said = []
    for name, interpreter in (("a.py", ""), ("b", ""), ("c", "sh"), ("d", "")):
        ref = server.run(server.define(executable=str(tmp_path / name), args=("x",), interpreter=interpreter))
        said.append(server.text(ref).strip())
    assert said == ["python x", "first line x", "named x", "no first line x"]


@pytest.mark.usefixtures("agent")
def test_output_comes_while_the_program_runs(server: ScriptedServer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    ref = server.order(server.define(command=shell(f"echo before; while [ ! -e {go} ]; do sleep 0.01; done; echo after")))
    server.wait(lambda: "before" in server.text(ref))
    assert ref not in server.finished
    go.touch()
    server.wait(lambda: ref in server.finished)
    assert server.text(ref) == "before\nafter\n"


@pytest.mark.usefixtures("agent")
def test_a_flood_keeps_its_beginning_and_its_end(server: ScriptedServer) -> None:
    code = "print('begin'); [print('x' * 79) for _ in range(10000)]; print('end')"
    ref = server.run(server.define(command=(sys.executable, "-c", code)))
    text = server.text(ref)
    assert text.startswith("begin\n")
    assert text.endswith("end\n")
    assert len(text) <= 4096
    assert "bytes of output were cut here" in server.text(ref, stream=2)


@pytest.mark.usefixtures("agent")
def test_progress_lines_become_progress(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=shell("echo headway progress 40/100 resizing")))
    assert [(p.done, p.total, p.text) for p in server.progress if p.id == ref[0]] == [(40.0, 100.0, "resizing")]


@pytest.mark.usefixtures("agent")
def test_a_program_that_ignores_the_warning_at_its_cap_is_killed_with_its_children(server: ScriptedServer, tmp_path: Path) -> None:
    text = f"trap '' TERM; (trap '' TERM; echo $$ > {tmp_path}/never; sleep 600) & echo $! > {tmp_path}/child; wait; sleep 600"
    ref = server.order(server.define(command=shell(text), cap_ms=3000))
    child = pid_in(tmp_path / "child")
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CAP_EXCEEDED
    assert not alive(child)


@pytest.mark.usefixtures("agent")
def test_cancelling_ends_a_process_that_left_its_parent_and_its_session(server: ScriptedServer, tmp_path: Path) -> None:
    escape = f"setsid sh -c 'sleep 600 & echo $! > {tmp_path}/escaped' & wait; sleep 600"
    ref = server.order(server.define(command=shell(escape)))
    escaped = pid_in(tmp_path / "escaped")
    server.cancel(ref)
    server.wait(lambda: ref in server.finished)
    assert server.outcome(ref) is Outcome.CANCELLED
    until(lambda: not alive(escaped))


@pytest.mark.usefixtures("agent")
def test_nothing_stays_behind_when_a_program_ends_well(server: ScriptedServer, tmp_path: Path) -> None:
    text = f"env -i setsid sleep 600 & echo $! > {tmp_path}/stray"
    ref = server.run(server.define(command=shell(text)))
    assert server.outcome(ref) is Outcome.SUCCEEDED
    stray = pid_in(tmp_path / "stray")
    until(lambda: not alive(stray))


def test_what_an_attempt_leaves_in_its_folder_is_gone_before_the_next(server: ScriptedServer, agent: AgentProcess) -> None:
    mess = "pwd; touch a; ln -s / b; mkdir c; touch c/d; echo 1 > $HEADWAY_RESULT; touch $HEADWAY_CHECKPOINT_DIR/e"
    ref = server.run(server.define(command=shell(mess)))
    assert server.text(ref).startswith(str(agent.settings.data_dir))
    look = server.define(command=shell("ls -A . $HEADWAY_CHECKPOINT_DIR"))
    for _ in range(4):
        seen = server.text(server.run(look)).splitlines()
        assert [line for line in seen if line and not line.endswith(":")] == ["checkpoint"]


@pytest.mark.usefixtures("agent")
def test_a_waiting_task_is_cancelled_without_being_started(server: ScriptedServer, tmp_path: Path) -> None:
    all_of_it = Resources(cpus_milli=2000)
    first = server.order(server.define(command=("sleep", "600"), resources=all_of_it))
    touch = server.define(command=shell(f"touch {tmp_path}/ran"), resources=all_of_it)
    for attempt in range(1, 50):  # what waits for a second is given back, and a busy machine may be that late with the cancel
        second = server.order(touch, task=5000, attempt=attempt)
        server.wait(lambda: any(ref == second for beat in server.heartbeats for ref in beat.held or []) or second in server.returned)  # noqa: B023
        server.cancel(second)
        server.wait(lambda: server.is_over(second))  # noqa: B023
        if second in server.finished:
            break
    assert server.outcome(second) is Outcome.CANCELLED
    server.cancel(first, grace_s=0)
    server.wait(lambda: first in server.finished)
    assert not (tmp_path / "ran").exists()

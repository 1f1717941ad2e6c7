"""What a task in the sandbox can see, reach and do: nothing of its node and its neighbours (H11)."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import seccomp
from headway.agent.sandbox import Sandbox
from headway.domain.lifecycle import Outcome
from tests.support.agents import AgentProcess, alive
from tests.support.confined import ROOM, confining, is_root, need_sandbox, python, shell
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

TOKEN = "hw_agent_secret_of_this_test"
# Seconds to sleep by which these tests find their own processes; others may run the same tests now.
LONG, LONGER = str(6_000_000 + os.getpid()), str(16_000_000 + os.getpid())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ScriptedServer, AgentProcess]]:
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADWAY_TOKEN", TOKEN)
        with confining(tmp_path_factory.mktemp("agent"), token=TOKEN) as running:
            yield running


@pytest.fixture
def server(node: tuple[ScriptedServer, AgentProcess]) -> ScriptedServer:
    return node[0]


@pytest.fixture
def agent(node: tuple[ScriptedServer, AgentProcess]) -> AgentProcess:
    return node[1]


def said(server: ScriptedServer, command: tuple[str, ...], **fields: object) -> str:
    """What a task in the sandbox printed; it must have ended well."""
    ref = server.run(server.define(command=command, isolation="sandbox", resources=ROOM, **fields))
    assert server.outcome(ref) is Outcome.SUCCEEDED, (server.error(ref), server.text(ref, 2))
    return server.text(ref)


def test_it_is_a_user_without_capabilities_that_can_gain_none(server: ScriptedServer) -> None:
    status = dict(line.split(":\t", 1) for line in said(server, ("cat", "/proc/self/status")).splitlines())
    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == ["0" * 16] * 5
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert set(status["Uid"].split()) == {"1000"}


def test_outside_it_is_a_user_of_its_own(server: ScriptedServer, tmp_path: Path) -> None:
    if not is_root():
        pytest.skip("only an agent that is root has users to give")
    ref = server.order(server.define(command=("sleep", LONGER), isolation="sandbox", resources=ROOM))
    found: list[int] = []

    def its_user() -> bool:
        done = subprocess.run(["pgrep", "-f", f"sleep {LONGER}$"], capture_output=True, text=True)
        found.clear()
        for pid in done.stdout.split():
            with contextlib.suppress(FileNotFoundError):  # it ended while we looked
                found.append(os.stat(f"/proc/{pid}").st_uid)
        return len(found) == 3  # the sandbox, number 1 inside, and the program

    until(its_user)
    assert all(uid >= 200_000 for uid in found)
    server.cancel(ref, grace_s=0)
    server.wait(lambda: ref in server.finished)


def test_it_sees_only_its_own_processes(server: ScriptedServer) -> None:
    pids = said(server, shell("ls /proc | grep -c '^[0-9]*$'"))
    assert int(pids) <= 5
    assert str(os.getpid()) not in said(server, shell("ls /proc")).split() or os.getpid() < 10


def test_the_system_is_read_only_and_the_rest_is_not_there(server: ScriptedServer, agent: AgentProcess) -> None:
    attempts = f"""
for place in / /usr /bin /etc /proc/sys/kernel /dev; do touch $place/x 2>/dev/null && echo wrote $place; done
for place in /home /var/lib /etc/shadow /etc/passwd- /sys /boot {agent.settings.data_dir} {os.path.dirname(__file__)}; do
  [ -e $place ] && echo sees $place; done
exit 0"""
    assert said(server, shell(attempts)) == ""


def test_it_has_its_own_tmp_home_and_work_folder_and_the_next_task_finds_them_empty(server: ScriptedServer) -> None:
    mine = f"mine-{secrets.token_hex(8)}"  # nothing of that name was there before
    leave = f"echo secret > /tmp/{mine}; echo secret > ~/mine; echo secret > mine2; pwd; echo $HOME $TMPDIR"
    assert said(server, shell(leave)).split() == ["/task", "/task", "/tmp"]
    for _ in range(3):
        assert said(server, shell("find /tmp /task -type f")) == ""
    assert not Path(f"/tmp/{mine}").exists()


def test_it_knows_no_token_of_the_agent(server: ScriptedServer) -> None:
    assert TOKEN not in said(server, shell("env; cat /proc/*/environ 2>/dev/null; cat /proc/*/cmdline"))


def test_it_has_no_network_but_its_own_loopback(server: ScriptedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        code = f"""
import socket
for address in (("127.0.0.1", {port}), ("169.254.169.254", 80), ("10.0.0.1", 80), ("1.1.1.1", 53)):
    try: socket.create_connection(address, timeout=2); print("reached", address)
    except OSError as error: print(error.errno)
try: print("resolved", socket.gethostbyname("example.org"))
except OSError: print("no names")
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname()).close(); print("own loopback")
"""
        out = said(server, python(code))
    assert "reached" not in out
    assert "resolved" not in out
    assert "own loopback" in out


def test_abstract_sockets_of_the_host_are_not_its_own(server: ScriptedServer) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0headway-test-{os.getpid()}")
        listening.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect('\\0headway-test-{os.getpid()}')"
        code = f"import socket\ntry: {connect}; print('reached')\nexcept OSError: print('no')"
        assert said(server, python(code)) == "no\n"


def test_killing_everything_it_can_reaches_nobody_else(server: ScriptedServer, agent: AgentProcess) -> None:
    victim = server.order(server.define(command=("sleep", "600"), isolation="sandbox", resources=ROOM))
    supervisor = agent.supervisor()
    code = f"import os, signal\nfor pid in ({supervisor}, {agent.pid}, -1):\n  try: os.kill(pid, signal.SIGKILL)\n  except OSError: pass"
    ref = server.run(server.define(command=python(code), isolation="sandbox", resources=ROOM))
    assert ref in server.finished
    assert alive(supervisor)
    assert alive(agent.pid)
    server.cancel(victim, grace_s=0)
    server.wait(lambda: victim in server.finished)
    assert server.outcome(victim) is Outcome.CANCELLED


@pytest.mark.parametrize("path", ["/proc/kmsg", "/dev/zero", "/dev/tty"])
def test_a_file_whose_reading_never_ends_is_no_program_and_holds_up_nobody(server: ScriptedServer, path: str) -> None:
    """Its first line is looked at by the supervisor."""
    ref = server.run(server.define(executable=path, isolation="sandbox", resources=ROOM))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert said(server, ("echo", "here")) == "here\n"


def test_a_set_user_id_program_gives_nothing(server: ScriptedServer) -> None:
    code = """
import os, subprocess
for path in ("/bin/su", "/usr/bin/passwd", "/usr/bin/sudo"):
    if os.path.exists(path): subprocess.run([path, "-c", "touch /etc/x"], capture_output=True, stdin=subprocess.DEVNULL)
print(os.path.exists("/etc/x"), os.geteuid())
"""
    assert said(server, python(code)).split() == ["False", "1000"]


def test_a_program_outside_is_refused_with_what_to_do(server: ScriptedServer, tmp_path: Path) -> None:
    script = tmp_path / "outside.sh"
    script.write_text("#!/bin/sh\necho here")
    script.chmod(0o755)
    ref = server.run(server.define(command=(str(script),), isolation="sandbox", resources=ROOM))
    assert server.outcome(ref) is Outcome.NOT_STARTABLE
    assert "sandbox_paths" in server.error(ref)["message"]


def test_a_signal_and_an_exit_code_are_told_as_outside(server: ScriptedServer) -> None:
    ref = server.run(server.define(command=shell("kill -SEGV $$"), isolation="sandbox", resources=ROOM))
    assert server.outcome(ref) is Outcome.SIGNAL
    assert server.error(ref)["type"] == "SIGSEGV"
    ref = server.run(server.define(command=shell("exit 42"), isolation="sandbox", resources=ROOM))
    assert server.finished[ref].exit_code == 42


def test_the_warning_before_the_end_reaches_the_task_itself(server: ScriptedServer, tmp_path: Path) -> None:
    text = "trap 'echo warned; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    ref = server.order(server.define(command=shell(text), isolation="sandbox", resources=ROOM))
    server.wait(lambda: "ready" in server.text(ref))
    server.cancel(ref)
    server.wait(lambda: ref in server.finished)
    assert "warned" in server.text(ref)


def test_when_the_supervisor_is_killed_its_sandboxes_die_at_once(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    need_sandbox(tmp_path)
    with confining(tmp_path_factory.mktemp("agent"), node_name="other") as (server, agent):
        server.order(server.define(command=("sleep", LONG), isolation="sandbox", resources=ROOM))

        def sleepers() -> list[str]:
            return subprocess.run(["pgrep", "-f", f"sleep {LONG}$"], capture_output=True, text=True).stdout.split()

        until(sleepers)
        os.kill(agent.supervisor(), 9)
        until(lambda: not sleepers())


# --- the filter of system calls, one by one

MARK = 4000  # an errno that no call gives by itself
COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 0)
CALLS = {name: numbers[COLUMN] for name, numbers in seccomp.DENIED.items() if numbers[COLUMN] is not None}
_CALL = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
for line in sys.argv[1].split(";"):
    name, *words = line.split(",")
    result = libc.syscall(*(ctypes.c_long(int(word)) for word in words))
    print(name, ctypes.get_errno() if result == -1 else 0)
"""


def filtered(folder: Path, calls: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """The errno of each call in a sandbox whose filter answers with MARK."""
    work = folder / "work"
    work.mkdir()
    sandbox = Sandbox(str(folder / "box"), shown=[])
    (folder / "marked.bpf").write_bytes(seccomp.program(MARK))
    lines = ";".join(f"{name},{','.join(map(str, words))}" for name, words in calls.items())
    with open(folder / "marked.bpf", "rb") as bpf:
        command = sandbox.command(
            ["/usr/bin/python3", "-I", "-S", "-c", _CALL, lines],
            str(work),
            private_tmp=str(work),
            filter_fd=bpf.fileno(),
            status_fd=None,
            variables_fd=None,
        )
        done = subprocess.run(command, pass_fds=(bpf.fileno(),), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name: int(code) for name, code in (line.split() for line in done.stdout.splitlines())}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    need_sandbox(tmp_path_factory.mktemp("probe"))
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no Python of the system's own")
    return filtered(tmp_path_factory.mktemp("filter"), {name: (number, -1, 0, 0, 0, 0) for name, number in CALLS.items()})


@pytest.mark.parametrize("name", CALLS)
def test_a_denied_call_answers_by_the_filter(answers: dict[str, int], name: str) -> None:
    assert answers[name] == MARK


def test_namespaces_families_terminals_and_personalities_are_looked_at(tmp_path: Path) -> None:
    need_sandbox(tmp_path / "probe")
    clone, clone3 = seccomp.CLONE[COLUMN], seccomp.CLONE3[COLUMN]
    sock, ioctl, persona = seccomp.SOCKET[COLUMN], seccomp.IOCTL[COLUMN], seccomp.PERSONALITY[COLUMN]
    answers = filtered(
        tmp_path,
        {
            "clone_newuser": (clone, 0x1000_0000 | 17, 0, 0, 0, 0),
            "clone_newnet": (clone, 0x4000_0000 | 17, 0, 0, 0, 0),
            "clone3": (clone3, 0, 0),
            "vsock": (sock, 40, 1, 0),
            "alg": (sock, 38, 5, 0),
            "packet": (sock, 17, 3, 0),
            "unix": (sock, 1, 1, 0),
            "inet": (sock, 2, 1, 0),
            "tiocsti": (ioctl, 0, 0x5412, 0),
            "tioclinux": (ioctl, 0, 0x541C, 0),
            **{f"subvolume_{number:x}": (ioctl, -1, number, 0) for number in seccomp.SUBVOLUME_IOCTLS},
            "persona_read": (persona, 0xFFFF_FFFF),
            "persona_no_randomize": (persona, 0x0040000),
        },
    )
    denied = ("clone_newuser", "clone_newnet", "vsock", "alg", "packet", "tiocsti", "tioclinux", "persona_no_randomize")
    denied += tuple(name for name in answers if name.startswith("subvolume_"))
    assert len(denied) == 12
    assert {name: answers[name] for name in denied} == dict.fromkeys(denied, MARK)
    assert answers["clone3"] == errno.ENOSYS
    assert (answers["unix"], answers["inet"], answers["persona_read"]) == (0, 0, 0)


def test_blocks_can_be_freed_and_not_reserved(tmp_path: Path) -> None:
    """A reservation of any size takes no time: a watch on what was written would come too late."""
    need_sandbox(tmp_path / "probe")
    fallocate, ioctl = seccomp.FALLOCATE[COLUMN], seccomp.IOCTL[COLUMN]
    answers = filtered(
        tmp_path,
        {
            "reserve": (fallocate, -1, 0, 0, 4096),
            "beyond_the_end": (fallocate, -1, 1, 0, 4096),
            "zeros": (fallocate, -1, 0x10, 0, 4096),
            "old_way": (ioctl, -1, 0x4030_582A, 0),
            "hole": (fallocate, -1, 3, 0, 4096),
        },
    )
    assert answers.pop("hole") == errno.EBADF
    assert set(answers.values()) == {errno.EOPNOTSUPP}


def test_every_denied_call_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert [name for name in seccomp.DENIED if f"`{name}`" not in page] == []



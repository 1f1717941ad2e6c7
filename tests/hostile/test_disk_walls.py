"""On btrfs with quotas the kernel holds a task at its disk limit, whatever it does: nobody has to look in time (G3 H11)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headway.agent import tree, walls
from headway.agent.scratch import Scratch
from headway.agent.seccomp import SUBVOLUME_IOCTLS
from headway.cli import enforcement
from headway.config import Settings
from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.agents import AgentProcess, running_agent
from tests.support.btrfs import mounted
from tests.support.confined import LEVELS, MIB, need_groups, need_sandbox, python
from tests.support.processes import command_line
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until
from tests.unit.test_agent_spawn import left

LIMIT = 64 * MIB
ROOM = Resources(cpus_milli=2000, memory=384 * MIB, disk=LIMIT)
BEYOND = 1.1 * LIMIT
STORM = """
import os, signal, time
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
if not os.fork(): os.execv("/bin/sh", ["sh", "-c", "while :; do for n in $(seq 100); do sleep 0.2 & done; wait; done"])
time.sleep(0.5)
"""
WRITERS = {
    "one file": "fds = [os.open('f', 65)]",
    "fifty files": "fds = [os.open(f'f{n}', 65) for n in range(50)]",
    "no name": "fds = [os.open('f', 65)]; os.unlink('f')",
    "eight processes": """
for me in range(8):
    if not os.fork(): break
else:
    while True: os.wait()
fds = [os.open(f"{me}-{n}", 65) for n in range(8)]""",
}
FOREVER = """
while True:
    for fd in fds: os.write(fd, bytes(2**20))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    need_groups()
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with TemporaryDirectory(dir="/var/tmp") as above:  # users of sandboxes must be able to reach it
        os.chmod(above, 0o711)
        with mounted(Path(above)) as folder:
            yield folder


@pytest.fixture(scope="module")
def node(place: Path) -> Iterator[tuple[ScriptedServer, AgentProcess]]:
    settings = {"cpus": 8.0, "max_processes": 300, "paths": [str(Path(__file__).parent)], "sandbox_dir": str(place)}
    with ScriptedServer() as server, running_agent(place / "data", server.url, **settings) as agent:
        yield server, agent


@pytest.fixture(scope="module")
def server(node: tuple[ScriptedServer, AgentProcess]) -> ScriptedServer:
    return node[0]


@contextmanager
def standing_still(agent: AgentProcess) -> Iterator[None]:
    """The watch on disks, as one that finds no CPU would."""
    (watch,) = [pid for pid in tree.children(agent.supervisor()) if b"disk_process" in command_line(pid)]
    os.kill(watch, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(watch, signal.SIGCONT)


def subvolumes(place: Path) -> list[str]:
    """Folders of attempts around which there can be a wall."""
    found = [os.path.join(where, name) for where, names, _ in os.walk(place) for name in names]
    return [path for path in found if _inode(path) == 256]


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:  # removed since it was listed
        return 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", WRITERS)
def test_who_starts_programs_all_the_time_and_writes_stays_below_a_tenth_more(server: ScriptedServer, level: str, kind: str) -> None:
    code = STORM + WRITERS[kind] + FOREVER
    ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.DISK_FULL
    excess = server.error(ref)["excess"]
    assert (excess["what"], excess["allowed"]) == ("disk", LIMIT)
    assert LIMIT <= excess["used"] <= BEYOND


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_reserved_counts_before_anybody_looks(server: ScriptedServer, level: str) -> None:
    """The kernel refuses it at once; a sandbox cannot reserve, and so C libraries write."""
    code = "import os; os.posix_fallocate(os.open('f', 65), 0, 2**40)"
    ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    assert server.outcome(ref) is (Outcome.ERROR if level == "none" else Outcome.DISK_FULL)
    assert server.error(ref).get("excess", {"used": 0})["used"] <= BEYOND


@pytest.mark.parametrize("level", LEVELS)
def test_who_gives_up_at_the_wall_by_itself_is_told_its_limit(
    server: ScriptedServer, node: tuple[ScriptedServer, AgentProcess], level: str
) -> None:
    code = """
import os, sys
fds = [os.open(f"f{n}", 65) for n in range(8)]
try:
    while True:
        for fd in fds: os.write(fd, bytes(2**20))
except OSError as error: sys.exit(str(error))
"""
    with standing_still(node[1]):
        ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    assert "Disk quota exceeded" in server.text(ref, stream=2)
    assert server.outcome(ref) is Outcome.DISK_FULL
    assert LIMIT <= server.error(ref)["excess"]["used"] <= BEYOND


def test_who_only_overwrites_and_fails_for_a_reason_of_its_own_has_not_met_its_limit(place: Path) -> None:
    """The kernel sets room aside for what is written again, and gives it back when that is on the disk."""
    found = walls.below(str(place))
    assert found is not None
    found.make(task := str(place / "overwrites"), 0o700)
    try:
        assert found.build(task, LIMIT)
        with open(f"{task}/file", "wb") as file:
            file.write(bytes(40 * MIB))
            os.sync()
            told = [found.reached(task)]
            file.seek(0)
            for _ in range(40):  # of these one is as far as the last piece before the wall
                file.write(bytes(MIB))
                file.flush()
                told.append(found.reached(task))
        assert told == [0] * 41
    finally:
        found.remove(task)


def test_the_next_task_in_a_folder_has_all_of_its_own_room(server: ScriptedServer, place: Path) -> None:
    """What was removed is counted for a while; a folder that was large is therefore not used again, and leaves nothing."""
    fill = "open('f', 'wb').write(bytes(50 * 2**20))"
    for _ in range(6):
        ref = server.run(server.define(command=python(fill), resources=ROOM))
        assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)
    small = "import os\nassert sorted(os.listdir()) == ['checkpoint'], os.listdir()\nopen('f', 'w').write('x')"
    ends = server.run_many(server.define(command=python(small), resources=ROOM), [b""] * 20)
    assert {Outcome(end.outcome) for end in ends} == {Outcome.SUCCEEDED}
    until(lambda: len(subvolumes(place)) < 30)


def test_a_wall_that_could_not_be_lifted_for_want_of_a_descriptor_meets_nobody(place: Path) -> None:
    folders = Scratch(str(place / "folders"))
    path = folders.take()
    folders.wall(path, 2 * MIB)
    folders.give_back(path)
    with left(0), pytest.raises(OSError, match="Too many open files"):
        folders.take()
    again = folders.take()
    Path(again, "file").write_bytes(os.urandom(8 * MIB))
    os.sync()
    folders.close()
    for pid in folders.removers:
        os.waitpid(pid, 0)


def test_many_small_files_below_the_limit_fit(server: ScriptedServer) -> None:
    """The kernel sets more aside for a new file than it takes; it must not be told as too much."""
    code = "for n in range(4000): open(f'f{n}', 'wb').write(bytes(8192))"
    for level in LEVELS:
        ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
        assert server.outcome(ref) is Outcome.SUCCEEDED, server.error(ref)


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_removed_makes_room_at_once(server: ScriptedServer, level: str) -> None:
    """The kernel notices it with its next commit only, which it does when it would have to refuse."""
    code = "import os\nfor n in range(30):\n    open('f', 'wb').write(bytes(40 * 2**20)); os.unlink('f')"
    ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.text(ref, stream=2)


@pytest.mark.parametrize("watched", [True, False])
def test_a_function_that_meets_the_wall_failed_for_its_limit(
    server: ScriptedServer, node: tuple[ScriptedServer, AgentProcess], *, watched: bool
) -> None:
    """Whether the watch ends its runner or the kernel tells it first; the functions after it have room again."""
    define = server.define(function="hostile_functions:fill_its_folder", isolation="sandbox", resources=ROOM)
    with nullcontext() if watched else standing_still(node[1]):
        ref = server.run(define, 200 * MIB)
    assert server.outcome(ref) is Outcome.DISK_FULL, server.error(ref)
    assert LIMIT <= server.error(ref)["excess"]["used"] <= BEYOND
    assert server.outcome(server.run(define, MIB)) is Outcome.SUCCEEDED


def test_no_subvolume_is_made_inside_a_sandbox(server: ScriptedServer) -> None:
    """What is in one would be outside the wall."""
    code = f"""
import fcntl, os, struct
at = os.open(".", os.O_RDONLY)
for call in {SUBVOLUME_IOCTLS}:
    try: fcntl.ioctl(at, call, bytearray(struct.pack("q4088s", at, b"more")))
    except OSError as error: print(error.errno, end=" ")
print(sorted(os.listdir()))
"""
    ref = server.run(server.define(command=python(code), isolation="sandbox", resources=ROOM))
    assert server.text(ref).strip() == "1 1 1 1 ['checkpoint']"


def test_folders_of_a_killed_agent_are_removed_by_the_next(place: Path) -> None:
    fill = "import time; open('f', 'wb').write(bytes(2**24)); print('full', flush=True); time.sleep(600)"
    with ScriptedServer() as server:
        with running_agent(place / "killed", server.url, node_name="killed", cpus=8.0, sandbox_dir=str(place)) as agent:
            refs = [server.order(server.define(command=python(fill), isolation=level, resources=ROOM)) for level in LEVELS]
            server.wait(lambda: all("full" in server.text(ref) for ref in refs))
            left = [path for path in subvolumes(place) if glob(f"{path}/f") or glob(f"{path}/work/f")]
            assert len(left) == 2
            supervisor = agent.supervisor()
            agent.process.kill()
            os.kill(supervisor, signal.SIGKILL)
            agent.process.wait(60)
        with running_agent(place / "killed", server.url, node_name="killed", cpus=8.0, sandbox_dir=str(place)):
            until(lambda: not any(glob(f"{path}/f") or glob(f"{path}/work/f") for path in left))


def test_where_the_kernel_does_not_count_there_is_no_wall_and_doctor_says_so(tmp_path: Path) -> None:
    """It goes on letting everybody write: the watch has to hold them as on other file systems."""
    with mounted(tmp_path / "disk", 2**30) as folder:
        settings = Settings(data_dir=str(tmp_path), work_dir=str(folder / "work"), sandbox_dir=str(folder))  # one is not there yet
        until(lambda: "by the kernel (btrfs quotas), 5 %" in enforcement._disk(settings, None).found)  # it counts what is there first
        found = walls.below(str(folder))
        assert found is not None
        task = str(folder / "task")
        found.make(task, 0o700)
        assert found.build(task, LIMIT)
        stop_counting(folder)
        assert not found.build(task, LIMIT)
        (folder / "task" / "file").write_bytes(bytes(2 * LIMIT))
        os.sync()
        assert found.at_most(task, 2 * LIMIT) == 2 * LIMIT
        check = enforcement._disk(settings, None)
        assert check.state == "warn"
        assert "does not count the files of tasks and isolated tasks now" in check.found
        assert sorted(os.listdir(folder)) == ["beside", "task"]


def stop_counting(folder: Path) -> None:
    """As it comes of snapshots with large trees that are removed."""
    told = walls.file_system(str(folder))
    threshold = Path(f"{told}/qgroups/drop_subtree_threshold")
    if not threshold.exists():
        pytest.skip("this kernel counts what a removed snapshot shared, however much it is")
    threshold.write_text("0")
    beside, snapshot = str(folder / "beside"), str(folder / "snapshot")
    subprocess.run(["btrfs", "subvolume", "create", beside], check=True, capture_output=True)
    for n in range(3000):  # a tree of two levels
        (folder / "beside" / str(n)).touch()
    subprocess.run(["btrfs", "subvolume", "snapshot", beside, snapshot], check=True, capture_output=True)
    (folder / "snapshot" / "more").touch()
    subprocess.run(["btrfs", "subvolume", "delete", "--commit-after", snapshot], check=True, capture_output=True)
    until(lambda: Path(f"{told}/qgroups/inconsistent").read_text().strip() == "1")


def test_there_are_none_without_quotas_or_on_another_file_system(tmp_path: Path) -> None:
    assert walls.below(str(tmp_path / "missing")) is None
    if walls.file_system(str(tmp_path)) is None:
        assert walls.below(str(tmp_path)) is None

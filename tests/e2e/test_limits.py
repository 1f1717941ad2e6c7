"""Limits that the kernel holds: what a task above one is told, and what was counted (G3 B4 H6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.domain.lifecycle import Outcome
from headway.domain.resources import Resources
from tests.support.confined import LEVELS, MIB, ROOM, confining, need_groups, need_sandbox, python, shell
from tests.support.scripted_server import ScriptedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    need_groups()
    need_sandbox(tmp_path_factory.mktemp("probe"))
    with confining(tmp_path_factory.mktemp("agent")) as (running, _):
        yield running


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "none" else request.param


def test_more_memory_than_allowed_ends_as_out_of_memory_with_both_figures(server: ScriptedServer, level: str) -> None:
    ref = server.run(server.define(command=python("x = bytearray(500_000_000)"), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY
    excess = server.error(ref)["excess"]
    assert (excess["what"], excess["allowed"]) == ("memory", 128 * MIB)
    assert 128 * MIB <= excess["used"] <= 160 * MIB  # version 2 lets who is being killed have what it needs for that


def test_a_task_whose_child_was_out_of_memory_is_ended_too(server: ScriptedServer, level: str) -> None:
    hog = "python3 -c 'x = bytearray(500_000_000)'; sleep 600"
    ref = server.run(server.define(command=shell(hog), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.OUT_OF_MEMORY


def test_a_fork_bomb_ends_as_too_many_processes(server: ScriptedServer, level: str) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    ref = server.run(server.define(command=python(bomb), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.TOO_MANY_PROCESSES
    assert server.error(ref)["excess"] == {"what": "processes", "used": 65, "allowed": 64}


@pytest.mark.parametrize("files", [1, 50], ids=["one file", "many files"])
def test_a_disk_filler_at_full_speed_ends_as_disk_full_and_overshoots_by_little(
    server: ScriptedServer, level: str, files: int
) -> None:
    code = f"""
import os
piece, fds = bytes(2**20), [os.open(f"f{{n}}", os.O_WRONLY | os.O_CREAT) for n in range({files})]
while True:
    for fd in fds: os.write(fd, piece)
"""
    room = Resources(cpus_milli=1000, memory=512 * MIB, disk=256 * MIB)
    ref = server.run(server.define(command=python(code), isolation=level, resources=room))
    assert server.outcome(ref) is Outcome.DISK_FULL
    excess = server.error(ref)["excess"]
    assert excess["allowed"] == room.disk
    # At most 1.1 on a machine of its own; a shared one may stand still for a moment while the task goes on writing.
    assert room.disk <= excess["used"] <= 1.3 * room.disk


def test_no_single_file_of_a_sandbox_can_be_larger_than_its_disk(server: ScriptedServer) -> None:
    """The kernel holds that, for every process inside and from its first instruction on."""
    code = "import os, resource\nopen(os.environ['HEADWAY_RESULT'], 'w').write(str(resource.getrlimit(resource.RLIMIT_FSIZE)[0]))"
    ends = server.run_many(server.define(command=python(code), isolation="sandbox", resources=ROOM), [b""] * 20)
    assert {end.result for end in ends} == {str(ROOM.disk).encode()}
    fill = "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nfd = os.open('f', os.O_WRONLY | os.O_CREAT)\n"
    for way in ("while True: os.write(fd, bytes(2**20))", "os.posix_fallocate(fd, 0, 2**30)", "os.truncate(fd, 2**40)"):
        ref = server.run(server.define(command=python(fill + way), isolation="sandbox", resources=ROOM))
        assert server.outcome(ref) is Outcome.DISK_FULL, way
        assert server.error(ref)["excess"]["used"] <= ROOM.disk + MIB


def test_files_without_a_name_count_too(server: ScriptedServer, level: str) -> None:
    code = """
import os
fds = []
for n in range(30):
    fds.append(os.open("f", os.O_WRONLY | os.O_CREAT)); os.unlink("f")
while True:
    for fd in fds: os.write(fd, bytes(2**18))
"""
    ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    assert server.outcome(ref) is Outcome.DISK_FULL


def test_the_private_tmp_of_a_sandbox_counts_as_its_disk(server: ScriptedServer) -> None:
    fill = "for n in 1 2 3 4 5 6 7 8 9; do head -c 10M /dev/zero > /tmp/$n; done; sleep 600"
    ref = server.run(server.define(command=shell(fill), isolation="sandbox", resources=ROOM))
    assert server.outcome(ref) is Outcome.DISK_FULL


def test_a_cpu_quota_holds(server: ScriptedServer, level: str) -> None:
    spin = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    ref = server.run(server.define(command=python(spin), isolation=level, resources=Resources(cpus_milli=300, memory=128 * MIB)))
    assert server.outcome(ref) is Outcome.SUCCEEDED
    ended = server.finished[ref]
    took_ms = ended.ended_ms - ended.started_ms  # on a slow machine Python's own start takes a second more
    assert 0 < (ended.cpu_ms or 0) < 0.3 * took_ms + 500  # and what it had before it was moved under its quota


def direct(which: str, size: int) -> tuple[str, ...]:
    """A program that reads or writes pieces of that size past the cache, and prints how many a second, again and again."""
    how = "os.preadv" if which == "read" else "os.pwritev"
    return python(f"""
import mmap, os, time
with open("data", "wb") as file: file.write(bytes(8 * 2**20)); file.flush(); os.fsync(file.fileno())
fd, piece = os.open("data", os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, {size})
def rate():
    n, begin = 0, time.monotonic()
    while time.monotonic() - begin < 1.5:
        {how}(fd, [piece], {size} * (n % (8 * 2**20 // {size}))); n += 1
    return round(n / (time.monotonic() - begin), 1)
print(*(rate() for _ in range(4)))
""")


def rates(server: ScriptedServer, level: str, command: tuple[str, ...], **most: int) -> list[float]:
    """All but the first, in which the throttles may come."""
    resources = Resources(cpus_milli=500, memory=128 * MIB, disk=64 * MIB, **most)
    ref = server.run(server.define(command=command, isolation=level, resources=resources))
    assert server.outcome(ref) is Outcome.SUCCEEDED, server.text(ref, 2)
    return [float(word) for word in server.text(ref).split()[1:]]


@pytest.mark.parametrize("which", ["read", "write"])
def test_iops_are_capped(server: ScriptedServer, level: str, which: str) -> None:
    found = rates(server, level, direct(which, 4096), iops=100)
    assert 80 <= max(found) <= 120, found  # a busy machine may do less than it is allowed for a while


@pytest.mark.parametrize("which", ["read", "write"])
def test_bandwidth_is_capped(server: ScriptedServer, level: str, which: str) -> None:
    found = rates(server, level, direct(which, 2**18), bandwidth=4 * MIB)
    assert 0.8 * 16 <= max(found) <= 1.2 * 16, found  # pieces of a quarter of a MiB


def test_memory_cpu_and_io_of_each_attempt_are_counted(server: ScriptedServer, level: str) -> None:
    code = "import os\nx = bytearray(40 * 2**20); x[:: 4096] = bytes(len(x[:: 4096]))\nfd = os.open('f', 66); os.write(fd, x); os.fsync(fd)"
    ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    finished = server.finished[ref]
    assert 40 * MIB < (finished.max_memory or 0) <= 128 * MIB
    assert (finished.cpu_ms or 0) > 0
    assert (finished.written_bytes or 0) >= 40 * MIB


def test_a_small_program_has_a_peak_of_its_own_and_not_that_of_the_task_before_it(server: ScriptedServer, level: str) -> None:
    server.run(server.define(command=python("x = bytearray(90_000_000)"), isolation=level, resources=ROOM))
    ref = server.run(server.define(command=("/bin/true",), isolation=level, resources=ROOM))
    assert 0 < (server.finished[ref].max_memory or 0) < 20 * MIB


def test_ports_are_reserved_and_given_in_the_environment(server: ScriptedServer, level: str) -> None:
    wanted = Resources(cpus_milli=100, memory=64 * MIB, ports=2)
    listen = "echo $PORT $HEADWAY_PORTS"
    refs = [server.order(server.define(command=shell(listen), isolation=level, resources=wanted)) for _ in range(2)]
    server.wait(lambda: all(ref in server.finished for ref in refs))
    for ref in refs:
        port, ports = server.text(ref).split()
        assert ports.split(",")[0] == port
        assert len(set(ports.split(","))) == 2


def test_open_files_have_a_limit(server: ScriptedServer, level: str) -> None:
    code = "import os\nn = 0\ntry:\n  while True: os.dup(1); n += 1\nexcept OSError as error: print(n, error.strerror)"
    ref = server.run(server.define(command=python(code), isolation=level, resources=ROOM))
    count, why = server.text(ref).split(maxsplit=1)
    assert int(count) < 8192
    assert why.strip() == "Too many open files"


def test_a_limit_that_was_hit_does_not_count_against_the_next_task_in_its_place(server: ScriptedServer, level: str) -> None:
    for _ in range(3):
        ref = server.run(server.define(command=python("x = bytearray(500_000_000)"), isolation=level, resources=ROOM))
        assert server.outcome(ref) is Outcome.OUT_OF_MEMORY
        ref = server.run(server.define(command=shell("exit 3"), isolation=level, resources=ROOM))
        assert server.outcome(ref) is Outcome.ERROR
        assert server.finished[ref].exit_code == 3


def test_a_task_is_paused_resumed_and_signalled_at_every_level(server: ScriptedServer, level: str) -> None:
    text = "trap 'echo heard; exit 7' USR1; n=0; while :; do n=$((n+1)); echo step $n; sleep 0.02; done"
    ref = server.order(server.define(command=shell(text), isolation=level, resources=ROOM))
    server.wait(lambda: "step" in server.text(ref))
    assert server.control(ref, "pause") == "paused"
    other = server.run(server.define(command=shell("true"), isolation=level, resources=ROOM))
    assert server.outcome(other) is Outcome.SUCCEEDED
    for _ in range(2):  # what it said before the pause may still be on its way during the first
        before = server.text(ref)
        server.run(server.define(command=shell("sleep 0.3"), isolation=level, resources=ROOM))
    assert server.text(ref) == before
    assert server.control(ref, "resume") == "resumed"
    server.wait(lambda: server.text(ref) != before)
    assert server.control(ref, "signal", "USR1") == "signalled"
    server.wait(lambda: ref in server.finished)
    assert server.finished[ref].exit_code == 7
    assert "heard" in server.text(ref)

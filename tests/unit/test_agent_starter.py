"""Programs that compiled code starts, stays with and reads (agent.starter, starter.c), with real programs in real slots."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent import starter
from headway.agent.group import Limits
from headway.agent.handing import side_by_side
from headway.agent.link import Terms
from headway.agent.places import Places
from headway.agent.slots import Slot
from headway.agent.spawn import Launch, call_for
from headway.agent.starter import Run
from headway.agent.starts import Starts
from tests.support.confined import need_starter
from tests.support.waiting import until

INSTANCE = os.urandom(8).hex()  # another for each process of the tests: who makes the groups of one ends what is in them
PATIENCE_S = 60.0
LARGER = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>
static char words[300000];
int main(void) { return fcntl(1, F_SETPIPE_SZ, 1 << 20) < 0 || write(1, words, sizeof words) != sizeof words; }
"""
LONG = 'import time; print("begun", flush=True); time.sleep(600)'


class Bench:
    """Slots, and what starts programs in them."""

    def __init__(self, folder: Path) -> None:
        self.places = Places(str(folder), INSTANCE, Terms(), 10)
        self.starts = Starts(self.places.slots.starter)

    def slot(self) -> Slot:
        taken = self.places.slots.take(Limits(), isolated=False)
        assert taken is not None
        assert taken.compiled
        return taken

    def give(self, argv: list[str], slot: Slot | None = None, *, env: dict[str, str] | None = None, folder: str = "/") -> Launch:
        program = Launch(argv, env or {}, folder, -1, -1, slot or self.slot())
        self.starts.give([program])
        return program

    def wait(self, count: int = 1) -> list[Launch]:
        """Until so many have come back, without hurry."""
        found = self.starts.take()
        while len(found) < count:
            if not self.starts.listen_for(1):
                assert select.select([self.starts.woken], [], [], PATIENCE_S)[0]
                self.starts.hush()
            found += self.starts.take()
        return found

    def ran(self, argv: list[str], slot: Slot | None = None, **more: object) -> Run:
        program = self.give(argv, slot, **more)  # type: ignore[arg-type]
        assert self.wait() == [program]
        assert program.run is not None
        return program.run


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    need_starter()
    made = Bench(tmp_path)
    yield made
    made.places.close()


def whole(run: Run) -> tuple[int, bytes, bytes]:
    """How it ended and all it printed, also of one that took its time on a busy machine."""
    heard = [*run.heard]
    for at, fd in enumerate(run.pipes):
        while fd >= 0 and (data := read_on(fd)):
            heard[at] += data
    if run.pipes != (-1, -1):
        close(run)
    status = run.status if run.status is not None else os.waitpid(run.pid, 0)[1]
    return os.waitstatus_to_exitcode(status), heard[0], heard[1]


def sh(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def code_of(run: Run) -> int | None:
    return None if run.status is None else os.waitstatus_to_exitcode(run.status)


def open_here() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in found if os.path.lexists(f"/proc/self/fd/{fd}")}


def ended(run: Run) -> int:
    os.kill(run.pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1])


def close(run: Run) -> None:
    for fd in run.pipes:
        os.close(fd)


def read_on(fd: int) -> bytes:
    until(lambda: select.select([fd], [], [], 1)[0])
    return os.read(fd, 2**20)


def waited_for() -> dict[int, int]:
    """Children that have ended, and how."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return {}
    return {pid: status} if pid else {}


def test_a_program_that_ends_within_a_moment_comes_back_whole(bench: Bench) -> None:
    before = open_here()
    for _ in range(20):
        run = bench.ran(sh("echo words; echo errors >&2; exit 7"))
        if run.status is not None:
            break
        whole(run)  # the machine was busy
    assert (code_of(run), run.heard, run.pipes, run.error) == (7, (b"words\n", b"errors\n"), (-1, -1), 0)
    assert run.usage.ru_maxrss > 0
    with pytest.raises(ChildProcessError):
        os.waitpid(run.pid, 0)
    assert {fd for fd in open_here() - before if not os.readlink(f"/proc/self/fd/{fd}").startswith("/sys/fs/cgroup")} == set()


def test_a_program_that_lives_on_is_handed_over_with_its_pipes(bench: Bench) -> None:
    run = bench.ran(python(LONG))
    assert (run.status, run.heard) == (None, (b"", b""))
    assert read_on(run.pipes[0]) == b"begun\n"
    assert not os.get_inheritable(run.pipes[0])
    assert not os.get_blocking(run.pipes[0])
    assert ended(run) == -signal.SIGKILL
    assert os.read(run.pipes[1], 10) == b""  # nobody of us holds the other end
    close(run)


def test_programs_that_live_on_are_handed_over_when_the_supervisor_is_in_a_hurry(bench: Bench) -> None:
    programs = [bench.give(["/bin/sleep", "600"]) for _ in range(20)]
    found: list[Launch] = []
    bench.starts.wait(lambda: found.extend(bench.starts.take()))
    assert set(found) == set(programs)
    for program in programs:
        assert program.run is not None
        assert ended(program.run) == -signal.SIGKILL
        close(program.run)
    until(lambda: code_of(bench.ran(["/bin/sleep", "0.001"])) == 0)  # the hurry is over: who ends soon comes back whole


def test_it_has_the_environment_folder_session_and_signals_of_any_program(bench: Bench, tmp_path: Path) -> None:
    slot = bench.slot()
    said = whole(bench.ran(["/usr/bin/env"], slot, env={"A": "1", "B": "two words", "C": "ä=b"}))
    assert said == (0, "A=1\nB=two words\nC=ä=b\n".encode(), b"")
    assert whole(bench.ran(["/bin/pwd"], slot, folder=str(tmp_path))) == (0, f"{tmp_path}\n".encode(), b"")
    ps = "import os; print(os.getsid(0) == os.getpid(), os.readlink('/proc/self/fd/0'), sorted(os.listdir('/proc/self/fd')))"
    assert whole(bench.ran(python(ps), slot)) == (0, b"True /dev/null ['0', '1', '2', '3']\n", b"")  # the last is the list's own
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as whoever is started with `&` by a script
    try:
        status = whole(bench.ran(["/bin/cat", "/proc/self/status"], slot))[1].decode()
    finally:
        signal.signal(signal.SIGQUIT, before)
    usual = 2**31 - 1  # without those the C library and Python's tools keep for themselves
    lines = [line.split(":") for line in status.splitlines() if line.startswith(("SigB", "SigI", "SigC"))]
    signals = {name: int(mask, 16) & usual for name, mask in lines}
    assert signals == {"SigBlk": 0, "SigIgn": 0, "SigCgt": 0}


def test_it_runs_in_the_groups_of_its_slot(bench: Bench) -> None:
    slot = bench.slot()
    assert slot.group is not None
    run = bench.ran(python(LONG), slot)
    assert slot.pids() == [run.pid]
    assert slot.kill()
    os.waitpid(run.pid, 0)
    close(run)


@pytest.mark.parametrize("size", [0, 1, 4096, 65535, 65536])
def test_what_a_pipe_holds_comes_back_with_the_end(bench: Bench, size: int) -> None:
    code, out, err = whole(bench.ran(["/usr/bin/head", "-c", str(size), "/dev/zero"]))
    assert (code, len(out), err) == (0, size, b"")


def test_more_than_a_pipe_holds_is_read_by_the_supervisor(bench: Bench) -> None:
    """A writer waits until somebody reads, and lives longer than a moment so."""
    run = bench.ran(["/usr/bin/head", "-c", "200000", "/dev/zero"])
    assert run.status is None
    code, out, err = whole(run)
    assert (code, len(out), err) == (0, 200_000, b"")


def test_what_is_in_a_pipe_that_was_made_larger_is_not_lost(bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "larger.c"
    source.write_text(LARGER)
    subprocess.run(["gcc", "-o", tmp_path / "larger", source], check=True)
    for _ in range(5):
        run = bench.ran([str(tmp_path / "larger")])
        at_once = run.status is not None
        assert len(run.heard[0]) == (65536 if at_once else 0)
        code, out, _ = whole(run)
        assert (code, len(out)) == (0, 300_000)
        if at_once:
            return
    pytest.fail("it never ended within its moment")


def test_a_child_that_goes_on_writing_keeps_its_pipes_open_for_nobody(bench: Bench) -> None:
    """Its first process has ended, so the task has; who it left behind is ended with the slot."""
    slot = bench.slot()
    run = bench.ran(sh("(trap '' PIPE; while :; do echo flood; done) 2>/dev/null & echo $!"), slot)
    if run.status is None:
        assert os.waitpid(run.pid, 0)[1] == 0
    else:
        assert code_of(run) == 0
    assert slot.pids()
    assert slot.kill()
    if run.pipes != (-1, -1):  # it wrote more than is read at once
        close(run)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM])
def test_a_program_that_a_signal_ends_says_which(bench: Bench, number: signal.Signals) -> None:
    assert whole(bench.ran(sh(f"kill -{number.value} $$")))[0] == -number


def test_one_that_stops_itself_lives(bench: Bench) -> None:
    run = bench.ran(sh("kill -STOP $$"))
    assert run.status is None
    assert ended(run) == -signal.SIGKILL
    close(run)


@pytest.mark.parametrize(
    ("argv", "folder", "error"),
    [
        (["/does/not/exist"], "/", errno.ENOENT),
        (["/etc/passwd"], "/", errno.EACCES),
        (["/bin/true"], "/does/not/exist", errno.ENOENT),
        (["/bin/true"], "/etc/passwd", errno.ENOTDIR),
    ],
)
def test_one_that_cannot_begin_is_told_with_the_reason(bench: Bench, argv: list[str], folder: str, error: int) -> None:
    slot = bench.slot()
    before = open_here()
    run = bench.ran(argv, slot, folder=folder)
    assert (run.error, run.pid, run.status) == (error, -1, None)
    assert {fd for fd in open_here() - before if not os.readlink(f"/proc/self/fd/{fd}").startswith("/sys/fs/cgroup")} == set()
    assert Path(f"/proc/self/task/{slot.thread}/children").read_text() == ""
    assert whole(bench.ran(["/bin/true"], slot))[0] == 0


def test_a_script_without_its_first_line_and_one_too_long_are_told(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo never by itself\n")
    script.chmod(0o755)
    assert bench.ran([str(script)]).error == errno.ENOEXEC
    assert bench.ran(["/bin/true", "x" * 200_000]).error == errno.E2BIG


@pytest.mark.parametrize(("words", "env"), [(["/bin/echo", "a\0b"], {}), (["/bin/true"], {"A": "1\0B=2"}), (["/bin/true"], {"A\0B": "1"})])
def test_a_nul_is_refused_wherever_it_is(bench: Bench, words: list[str], env: dict[str, str]) -> None:
    assert bench.ran(words, env=env).error == errno.EINVAL


def test_words_of_any_bytes_arrive_as_they_were(bench: Bench) -> None:
    odd = b"\xff\xfe caf\xc3\xa9 \n\t".decode(errors="surrogateescape")
    assert whole(bench.ran(["/usr/bin/printf", "%s", odd, ""], env={"": "nameless"})) == (0, os.fsencode(odd), b"")
    assert bench.ran(["/bin/echo", "\ud800"]).error == errno.EILSEQ


def test_words_grow_and_shrink_from_program_to_program_in_a_slot(bench: Bench) -> None:
    slot = bench.slot()
    for count in (1, 3000, 2, 500, 5000, 1):
        words = [f"word{number}" for number in range(count)]
        env = {f"V{number}": "x" * number for number in range(count // 10)}
        code, out, _ = whole(bench.ran(["/bin/echo", *words], slot, env=env))
        assert (code, out.decode().split()) == (0, words)


def test_all_come_back_once_however_many_there_are(bench: Bench) -> None:
    slots = [bench.slot() for _ in range(30)]
    for round_ in range(20):
        given = {number: bench.give(sh(f"echo {number}.{round_}; exit {number}"), slot) for number, slot in enumerate(slots)}
        back = bench.wait(len(slots))
        assert {id(program) for program in back} == {id(program) for program in given.values()}
        for number, program in given.items():
            assert program.run is not None
            assert whole(program.run) == (number, f"{number}.{round_}\n".encode(), b"")
    assert bench.starts.take() == []
    assert bench.starts.over(bench.starts.turn)


def test_whoever_waits_first_knows_the_end_and_the_other_says_so(bench: Bench) -> None:
    """The supervisor waits for all its children too, and may be first."""
    slot, by_thread = bench.slot(), 0
    for turn in range(300):
        program, found = bench.give(["/bin/true"], slot), {}
        while not bench.starts.listen_for(1):
            if turn % 2:
                found |= waited_for()
        bench.starts.take()
        assert program.run is not None
        if program.run.status is None:
            if not found:  # it took its time on a busy machine, and was handed over
                close(program.run)
                found = until(waited_for)
            assert found[program.run.pid] == 0
        else:
            assert code_of(program.run) == 0
            assert program.run.pid not in found  # other tests may have left children of their own
            by_thread += 1
    assert by_thread > 100


def test_its_thread_does_other_work_between_programs(bench: Bench) -> None:
    slot, null = bench.slot(), os.open(os.devnull, os.O_WRONLY)
    for _ in range(20):
        assert whole(bench.ran(["/bin/true"], slot))[0] == 0
        program = Launch(["/bin/true"], {}, "/", null, null, slot)
        side_by_side([call_for(program)])
        assert (program.error, os.waitpid(program.pid, 0)[1]) == (0, 0)
    os.close(null)


def test_pipes_for_which_no_descriptor_is_left_are_told_as_lost(bench: Bench) -> None:
    slot = bench.slot()
    program = bench.give(python(LONG), slot)
    until(lambda: bench.starts.listen_for(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < max(open_here() - set(taken)):
        taken.append(os.dup(taken[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 2, hard))  # room for one of the two
    try:
        assert bench.starts.take() == [program]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    run = program.run
    assert run is not None
    assert (run.lost, run.pipes) == (True, (-1, -1))
    assert ended(run) in (-signal.SIGKILL, -signal.SIGPIPE, 1, 120)


def test_a_thread_that_ends_gives_its_memory_back(bench: Bench) -> None:
    for _ in range(50):
        slots = [bench.slot() for _ in range(4)]
        for slot in slots:
            assert whole(bench.ran(["/bin/true"], slot))[0] == 0
            bench.places.slots._remove(slot)
    assert whole(bench.ran(["/bin/true"]))[0] == 0


def test_two_supervisors_parts_in_one_process_do_not_meet(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    places = Places(str(tmp_path / "other"), os.urandom(8).hex(), Terms(), 10)
    other = Starts(places.slots.starter)
    slot = places.slots.take(Limits(), isolated=False)
    assert slot is not None
    theirs = Launch(["/bin/true"], {}, "/", -1, -1, slot)
    other.give([theirs])
    ours = bench.give(["/bin/true"])
    assert bench.wait() == [ours]
    until(lambda: other.listen_for(1))
    assert other.take() == [theirs]
    places.close()


@pytest.mark.parametrize("missing", ["file", "version", "threads"])
def test_without_the_compiled_part_slots_say_so_and_work_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    need_starter()
    starter.library.cache_clear()
    if missing == "file":
        monkeypatch.setattr(starter, "LIBRARY", str(tmp_path / "none.so"))
    elif missing == "threads":
        monkeypatch.setattr(starter, "can_part", lambda: False)
    else:
        monkeypatch.setattr(starter, "VERSION", 99)
    try:
        places = Places(str(tmp_path), INSTANCE, Terms(), 10)
        slot = places.slots.take(Limits(), isolated=False)
        assert slot is not None
        assert slot.compiled == 0
        null = os.open(os.devnull, os.O_WRONLY)
        program = Launch(["/bin/true"], {}, "/", null, null, slot)
        side_by_side([call_for(program)])
        assert (program.error, os.waitpid(program.pid, 0)[1]) == (0, 0)
        assert not places.slots.starter.listen_for(0)
        assert list(places.slots.starter.take()) == []
        os.close(null)
        places.close()
    finally:
        starter.library.cache_clear()

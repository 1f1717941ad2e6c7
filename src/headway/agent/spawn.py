"""posix_spawn for many programs at once.

The caller of posix_spawn stands still until the kernel has loaded the program, about as long as the program's own start costs. Python's
os.posix_spawn keeps the interpreter lock meanwhile, so one supervisor could use one core for starting. Called through ctypes the lock is
free, and threads used for nothing else start programs side by side: a slot's own thread, or one of a few. The supervisor gives them
programs and goes on (see starts); the rest of it stays single-threaded. It also lets each program have its own working directory without
changing ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial

from headway.agent.descriptors import HIGHEST, Fetched
from headway.agent.handing import Call, Calls, side_by_side
from headway.agent.niceness import be_usual
from headway.agent.sandbox import HELD_FD, VARIABLES_FD
from headway.agent.slots import Slot
from headway.agent.starter import Run

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80  # flags of <spawn.h>
_ROOM = 512  # bytes for the two opaque structs: 80 and 336 in glibc
# Python ignores the last two, and whoever starts an agent behind a terminal's back (`&`, nohup) the others; programs expect them.
_DEFAULT_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)
_THREADS = 3
_DOOR_FD = 9
_TRIES, _AGAIN_US, _LATER_US = 1000, 20, 2000  # soon at first; a machine with no time to load a program is asked for two seconds more
# Where a new process must be moved into its group (cgroups version 2), it waits at a door until it has been.
_WAIT_AT_DOOR = ["/bin/sh", "-c", f'read -r _ <&{_DOOR_FD}; exec "$@" {_DOOR_FD}<&-', "sh"]
_CODEC, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()  # as os.fsencode, at a third of its cost
_libc = ctypes.CDLL(None, use_errno=False)
_quick = ctypes.PyDLL(None)  # for calls that are over at once: they keep the interpreter


@dataclass(slots=True, eq=False)
class Launch:
    """One program to start: everything it needs, and afterwards its process id or an errno."""

    argv: list[str]
    env: dict[str, str]
    workdir: str
    stdout: int
    stderr: int
    slot: Slot | None = None
    opens: tuple[tuple[int, str], ...] = ()  # descriptor -> file to read, opened anew for this program
    passes: tuple[tuple[int, int], ...] = ()  # our descriptor -> its descriptor
    largest_file: int = 0  # RLIMIT_FSIZE; a sandbox with one is held by HELD_FD until it has it, and so have all its processes
    pid: int = -1
    error: int = 0
    turn: int = 0  # of those that were given to the threads together
    door: tuple[int, int, int] | None = field(default=None)  # the two ends of a pipe, and what moves it into its group
    run: Run | None = None  # what became of one that was left to compiled code, which makes its pipes

    @property
    def alone(self) -> bool:
        """Left to the compiled code of its slot (see starter)."""
        return self.stdout < 0


def pipes(count: int) -> list[tuple[int, int]]:
    """So many pipes, or none and OSError. The ends to read from, which are ours, never make us wait."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            made.append(os.pipe())
            os.set_blocking(made[-1][0], False)
    except OSError:
        close_all(fd for pair in made for fd in pair)
        raise
    return made


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def launch(program: Launch) -> None:
    """Start it, and return when it has begun or failed."""
    side_by_side([call_for(program)])
    complete(program)


def call_for(program: Launch) -> tuple[Calls, Call]:
    """Which thread starts it, and how: its slot's, or a common one. Not the caller's: its priority is not for tasks."""
    if program.slot is None:
        _start_threads()
    try:
        if program.slot is not None and program.slot.group is not None and program.slot.group.place is not None:
            program.door = _make_door(program.slot.group.place)
        call = _prepare(program, program.argv)
    except OSError as error:  # no descriptors are left: this one is not started, the others of its turn are
        call = partial(_fail, program, error.errno or errno.EIO)
    except UnicodeEncodeError:  # words that the locale of this node cannot write
        call = partial(_fail, program, errno.EILSEQ)
    return program.slot.calls if program.slot is not None else _common, call


def _fail(program: Launch, code: int) -> None:
    program.error = code


def complete(program: Launch) -> None:
    """What is left to do when its thread has done its part."""
    if program.error == errno.ENOEXEC:  # a script without #!, as every shell treats it
        calls = program.slot.calls if program.slot is not None else _common
        side_by_side([(calls, _prepare(program, ["/bin/sh", *program.argv]))])
    if program.door is not None:
        _open_door(program)


def _prepare(program: Launch, argv: list[str]) -> Call:
    """The call, with all its arguments built: a thread that runs it hardly needs the interpreter."""
    if program.door is not None:
        argv = [*_WAIT_AT_DOOR, *argv]
    vector = _vector([word.encode(_CODEC, _ERRORS) for word in argv])
    environment = _vector(_variables(program.env))
    fetched = Fetched(parted=program.slot is not None and program.slot.parted)
    actions = _actions_of(program, fetched)
    pid = ctypes.c_int(-1)
    spawn = partial(_libc.posix_spawn, ctypes.byref(pid), vector[0], actions.made, _attributes, vector, environment)

    def call() -> None:
        program.error = fetched.fetch() or (_held(program, actions, spawn, pid) if program.largest_file else spawn())
        program.pid = pid.value
        fetched.close()

    return call


class _Actions:
    """What a new process does before it becomes the program."""

    def __init__(self, workdir: str, nothing: int, stdout: int, stderr: int) -> None:
        self.made = ctypes.create_string_buffer(_ROOM)
        _quick.posix_spawn_file_actions_init(self.made)
        for number, fd in enumerate((nothing, stdout, stderr)):
            self.copy(fd, number)
        _quick.posix_spawn_file_actions_addchdir_np(self.made, os.fsencode(workdir))

    def copy(self, fd: int, number: int) -> None:
        """The C library asks the kernel twice how many descriptors there may be."""
        _quick.posix_spawn_file_actions_adddup2(self.made, fd, number)

    def __del__(self, destroy: Callable[[object], int] = _quick.posix_spawn_file_actions_destroy) -> None:
        destroy(self.made)


_usual_actions = lru_cache(maxsize=256)(_Actions)  # folders are used again, and the pipes have the same numbers in every table of a thread


def _actions_of(program: Launch, fetched: Fetched) -> _Actions:
    usual = fetched.parted and not (program.opens or program.passes or program.largest_file or program.door)
    stdout, stderr = fetched.number(program.stdout), fetched.number(program.stderr)
    actions = (_usual_actions if usual else _Actions)(program.workdir, fetched.nothing, stdout, stderr)
    for fd, path in program.opens:
        _quick.posix_spawn_file_actions_addopen(actions.made, fd, os.fsencode(path), os.O_RDONLY, 0)
    for ours, theirs in program.passes:
        actions.copy(fetched.number(ours), theirs)
    if program.door is not None:
        actions.copy(fetched.number(program.door[0]), _DOOR_FD)
    return actions


def _variables(env: dict[str, str]) -> list[bytes]:
    """All at once: a third of the cost of one by one."""
    words = "\0".join([f"{name}={value}" for name, value in env.items()]).encode(_CODEC, _ERRORS).split(b"\0")
    if len(words) != max(len(env), 1):
        raise OSError(errno.EINVAL, "a variable of the environment holds a NUL")
    return words if env else []


def _held(program: Launch, actions: _Actions, spawn: Callable[[], int], pid: ctypes.c_int) -> int:
    """By the thread: the program is held by a pipe until it has its limit. An errno, or 0."""
    hold = (ctypes.c_int * 2)()
    if _quick.pipe2(hold, os.O_CLOEXEC) != 0:
        return errno.EMFILE
    actions.copy(hold[0], HELD_FD)
    error = spawn()
    largest = (ctypes.c_uint64 * 2)(program.largest_file, program.largest_file)
    if not error and not _limit(pid.value, largest):
        _libc.kill(pid.value, signal.SIGKILL)  # held until now, it has done nothing; without its limit it shall not
        error = errno.EPERM
    for fd in hold:
        _quick.close(fd)
    return error


def _limit(pid: int, largest: ctypes.Array[ctypes.c_uint64]) -> bool:
    """By this thread, which is the same user as the program: in all of its ids only once the kernel has done all of an exec."""
    for wait_us in itertools.chain(itertools.repeat(_AGAIN_US, _TRIES), itertools.repeat(_LATER_US, _TRIES)):
        if _libc.prlimit(pid, resource.RLIMIT_FSIZE, largest, None) == 0:
            return True
        _libc.usleep(wait_us)
    return False


def _make_door(place: str) -> tuple[int, int, int]:
    """All that it takes to open it again: once the program waits there, nothing may be missing."""
    group = os.open(place, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return *os.pipe(), group
    except OSError:
        os.close(group)
        raise


def _open_door(program: Launch) -> None:
    """Who cannot be moved into its group does not begin: nothing would limit it."""
    assert program.door is not None
    try:
        if not program.error:
            os.write(program.door[2], str(program.pid).encode())
    except OSError as error:
        program.error = error.errno or errno.EIO
        with contextlib.suppress(ProcessLookupError):  # somebody was faster
            os.kill(program.pid, signal.SIGKILL)
    finally:
        close_all(program.door)
        program.door = None


def _vector(words: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def _make_attributes() -> ctypes.Array[ctypes.c_char]:
    """Own session, no blocked signals, default handlers: the same for every program."""
    made = ctypes.create_string_buffer(_ROOM)
    signals = ctypes.create_string_buffer(128)  # sigset_t
    _libc.posix_spawnattr_init(made)
    _libc.posix_spawnattr_setflags(made, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID))
    _libc.sigemptyset(signals)
    _libc.posix_spawnattr_setsigmask(made, signals)
    for number in _DEFAULT_SIGNALS:
        _libc.sigaddset(signals, int(number))
    _libc.posix_spawnattr_setsigdefault(made, signals)
    return made


_attributes = _make_attributes()
assert max(HELD_FD, VARIABLES_FD, _DOOR_FD) <= HIGHEST
_common = Calls()
_started = 0


def _start_threads() -> None:
    global _started
    wanted = min(_THREADS, len(os.sched_getaffinity(0)))
    while _started < wanted:
        threading.Thread(target=_serve, daemon=True, name="spawn").start()
        _started += 1


def _serve() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the supervisor's own thread
    be_usual()
    while (work := _common.get()) is not None:
        call, then = work
        call()
        then()

"""posix_spawn for many programs at once.

The caller of posix_spawn stands still until the kernel has loaded the program, about as long as the program's own start costs. Python's
os.posix_spawn keeps the interpreter lock meanwhile, so one supervisor could use one core for starting. Called through ctypes the lock is
free, and a few threads, used for nothing else, start programs side by side; the supervisor itself stays single-threaded, because it
waits for all of them. It also lets each program have its own working directory without changing ours.
"""

from __future__ import annotations

import ctypes
import errno
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80  # flags of <spawn.h>
_ROOM = 512  # bytes for the two opaque structs: 80 and 336 in glibc
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them; programs expect them
_THREADS = 3
_libc = ctypes.CDLL(None, use_errno=False)


@dataclass(slots=True)
class Launch:
    """One program to start: everything it needs, and afterwards its process id or an errno."""

    argv: list[str]
    env: dict[str, str]
    workdir: str
    stdout: int
    stderr: int
    pid: int = -1
    error: int = 0


def launch(programs: Sequence[Launch]) -> None:
    """Start all of them, side by side, and return when each has begun or failed."""
    calls = [_prepare(program, program.argv) for program in programs]
    _run_side_by_side(calls)
    for program in programs:
        if program.error == errno.ENOEXEC:  # a script without #!, as every shell treats it
            _prepare(program, ["/bin/sh", *program.argv])()


def _prepare(program: Launch, argv: list[str]) -> Callable[[], None]:
    """The call, with all its arguments built: a thread that runs it hardly needs the interpreter."""
    actions = ctypes.create_string_buffer(_ROOM)
    _libc.posix_spawn_file_actions_init(actions)
    _libc.posix_spawn_file_actions_addopen(actions, 0, b"/dev/null", os.O_RDONLY, 0)
    _libc.posix_spawn_file_actions_adddup2(actions, program.stdout, 1)
    _libc.posix_spawn_file_actions_adddup2(actions, program.stderr, 2)
    _libc.posix_spawn_file_actions_addchdir_np(actions, os.fsencode(program.workdir))
    vector = _vector([os.fsencode(word) for word in argv])
    environment = _vector([os.fsencode(f"{name}={value}") for name, value in program.env.items()])
    pid = ctypes.c_int(-1)

    def call() -> None:
        program.error = _libc.posix_spawn(ctypes.byref(pid), vector[0], actions, _attributes, vector, environment)
        program.pid = pid.value
        _libc.posix_spawn_file_actions_destroy(actions)

    return call


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
_waiting: queue.SimpleQueue[tuple[Callable[[], None], threading.Semaphore]] = queue.SimpleQueue()
_started = 0


def _run_side_by_side(calls: list[Callable[[], None]]) -> None:
    """Hand all but the last to the threads, run what they leave, and wait."""
    if len(calls) < 2:
        for call in calls:
            call()
        return
    _start_threads()
    done = threading.Semaphore(0)
    for call in calls:
        _waiting.put((call, done))
    mine = 0
    while True:  # help with the queue instead of only waiting for it
        try:
            call, _ = _waiting.get_nowait()
        except queue.Empty:
            break
        call()
        mine += 1
    for _ in range(len(calls) - mine):
        done.acquire()


def _start_threads() -> None:
    global _started
    wanted = min(_THREADS, len(os.sched_getaffinity(0)) - 1)
    while _started < wanted:
        threading.Thread(target=_serve, daemon=True, name="spawn").start()
        _started += 1


def _serve() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the supervisor's own thread
    while True:
        call, done = _waiting.get()
        call()
        done.release()

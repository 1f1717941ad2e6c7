"""What the tasks of an agent's walk by chance do: a program, and functions for warm runners, that follow a list of steps.

Each holds a lock on its task's file for as long as any of its processes lives: two attempts at once, and whatever is left of an
attempt that has ended, show by it. It needs nothing but the standard library, so that it starts quickly and inside a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time

OVERLAP = 99  # the exit code of an attempt that met another one
FOREVER_S = 600.0
EVERY_S = 0.05
Steps = list[list[object]]


def line(letter: str, number: int, width: int) -> str:
    """A line of output that says which it is."""
    return f"{letter}{number:06d} ".ljust(width, "é") + "\n"


class Doing:
    """One attempt, and how it does each step."""

    def __init__(self, lock: str, *, function: bool) -> None:
        self.function = function
        self.said = {1: 0, 2: 0}
        self.kept: list[bytearray] = []
        self.result: object = None
        self.lock = os.open(lock, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.write(2, b"overlap\n")
            if function:
                raise RuntimeError("overlap") from None
            os._exit(OVERLAP)
        if not function:
            os.set_inheritable(self.lock, True)

    def close(self) -> None:
        os.close(self.lock)

    def do(self, steps: Steps) -> object:
        for name, *arguments in steps:
            getattr(self, str(name))(*arguments)
        return self.result

    def write(self, stream: int, text: str) -> None:
        if self.function:
            print(text, end="", file=sys.stdout if stream == 1 else sys.stderr)
            return
        left = text.encode()
        while left:
            left = left[os.write(stream, left) :]

    def say(self, stream: int, lines: int, width: int) -> None:
        for _ in range(lines):
            self.said[stream] += 1
            self.write(stream, line("-oe"[stream], self.said[stream], width))

    def tick(self, seconds: float) -> None:
        """Say what time it is, again and again: it can be seen whether it stood still."""
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            number += 1
            self.write(1, f"t{number:06d} {time.monotonic_ns()}\n")
            time.sleep(EVERY_S)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def spin(self, seconds: float) -> None:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    def touch(self, size: int) -> None:
        self.kept.append(bytearray(b"x") * size)

    def ignore(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def shut(self) -> None:
        os.close(1)

    def progress(self, done: int, total: int) -> None:
        self.write(1, f"headway progress {done}/{total} on\n")

    def give(self, value: object) -> None:
        self.result = value
        if not self.function:
            with open(os.environ["HEADWAY_RESULT"], "w") as file:
                json.dump(value, file)

    def echo(self) -> None:
        """Its input is its result."""
        with open(os.environ["HEADWAY_INPUT"]) as file:
            self.give(json.load(file))

    def save(self) -> None:
        with open(os.path.join(os.environ["HEADWAY_CHECKPOINT_DIR"], "state"), "w") as file:
            file.write("here")

    def litter(self) -> None:
        """Leave files behind, and folders that nobody may enter."""
        os.makedirs("a/b/c")
        for number in range(20):
            with open(f"a/b/{number}", "w") as file:
                file.write("x")
        os.chmod("a/b", 0)

    def zombies(self, count: int) -> None:
        for _ in range(count):
            if os.fork() == 0:
                os._exit(0)

    def escape(self, how: str) -> None:
        """A process that has left everything it could leave, and goes on for ever. It may keep our pipes open, or none of them."""
        if os.fork():
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if how != "holds":
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({FOREVER_S})"], {})

    def crowd(self) -> None:
        """More processes than it may have."""
        while True:
            if os.fork() == 0:
                time.sleep(FOREVER_S)
                os._exit(0)

    def swell(self, size: int) -> None:
        """More memory than it may have."""
        while size > 0:
            self.kept.append(bytearray(b"x") * 2**20)
            size -= 2**20
        time.sleep(FOREVER_S)

    def fill(self, size: int) -> None:
        """More on its disk than it may have."""
        with open("full", "wb", buffering=0) as file:
            while size > 0:
                size -= file.write(b"x" * 2**16)
        time.sleep(FOREVER_S)

    def end(self, code: int) -> None:
        if self.function:
            raise ValueError(f"exit {code}")
        os._exit(code)

    def die(self, number: int) -> None:
        os.kill(os.getpid(), number)
        time.sleep(FOREVER_S)


def work(lock: str, steps: Steps) -> object:
    """As a function in a warm runner."""
    doing = Doing(lock, function=True)
    with contextlib.closing(doing):
        return doing.do(steps)


async def later(lock: str, steps: Steps) -> object:
    """The same, as a coroutine."""
    await asyncio.sleep(0.001)
    return work(lock, steps)


if __name__ == "__main__":
    Doing(sys.argv[1], function=False).do(json.loads(sys.argv[2]))

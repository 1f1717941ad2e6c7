"""Processes of the supervisor's own that run one errand each: told by a file in memory, and answering by another (H5 H8).

Not by a pipe: it is read when the process has ended, and one whose answer did not fit into the pipe never did.
"""

from __future__ import annotations

import os
import sys
from typing import Generic, TypeVar

import msgspec

from headway.agent.slots import Slot
from headway.agent.spawn import Launch, launch

Answer = TypeVar("Answer")
STDIN, STDERR = 0, 2


class Errands(Generic[Answer]):
    def __init__(self, module: str, env: dict[str, str], answer: type[Answer]) -> None:
        """`module.main` reads its job from descriptor 0 and writes its answer, encoded, to descriptor 1."""
        self._argv = [sys.executable, "-P", "-c", f"from {module} import main; main()"]
        self._env, self._type = env, answer
        self._answers: dict[int, int] = {}  # process -> where its answer comes

    def start(self, job: msgspec.Struct, slot: Slot | None = None) -> int:
        """Started by the slot's thread, it and all it starts are held by the slot's limits."""
        told = os.memfd_create("headway-errand")  # not in a file and not in the environment: it holds the agent's token
        try:
            os.write(told, msgspec.msgpack.encode(job))
            os.lseek(told, 0, os.SEEK_SET)
            answer = os.memfd_create("headway-answer")
        except OSError:
            os.close(told)
            raise
        program = Launch(self._argv, self._env, os.curdir, answer, STDERR, slot, passes=((told, STDIN),))
        try:
            launch(program)
            if program.error:
                raise OSError(program.error, os.strerror(program.error))
        except OSError:
            os.close(answer)
            raise
        finally:
            os.close(told)
        self._answers[program.pid] = answer
        return program.pid

    def ended(self, pid: int, status: int) -> Answer | str | None:
        """What this process, which was reaped, has answered, or in words how it died; None when it is not one of these."""
        if pid not in self._answers:
            return None
        with open(self._answers.pop(pid), "rb") as file:
            file.seek(0)  # it was written through the same open file
            body = file.read()
        try:
            return msgspec.msgpack.decode(body, type=self._type)
        except msgspec.DecodeError:
            code = os.waitstatus_to_exitcode(status)
            return f"{'signal' if code < 0 else 'exit code'} {abs(code)}"

    def drop_all(self) -> None:
        """Forget everything: it has been killed."""
        for answer in self._answers.values():
            os.close(answer)
        self._answers.clear()

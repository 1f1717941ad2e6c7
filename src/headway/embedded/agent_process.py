"""The agent of `headway up`: a child process of its own, since it must survive what happens to the server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from headway.config import Settings, environment
from headway.embedded import orphans
from headway.embedded.privileges import in_child

_GRACE_S = 25.0  # on top of the time it waits for tasks: ending them, and the last reports
_AGAIN_S = 0.5  # two signals that come before the agent looks are one to it


class AgentProcess:
    """`headway agent`, started with the settings of this process."""

    def __init__(self, settings: Settings, *, url: str, token: str) -> None:
        self._patience_s = settings.drain_s + _GRACE_S
        self._environment = {
            **os.environ,
            **environment(settings),
            "HEADWAY_URL": url,
            "HEADWAY_TOKEN": token,
            "HEADWAY_DATA": settings.data_dir,
        }
        self._environment.pop("HEADWAY_DATABASE", None)  # agents do not talk to the database
        self._process: subprocess.Popen[bytes] | None = None
        self._hurried = False

    @property
    def child(self) -> int | None:
        """The process we started, running or not."""
        return self._process.pid if self._process is not None else None

    @property
    def pid(self) -> int | None:
        """Whom to tell: the agent we started or, when only that was killed, its supervisor, which goes on without it."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        return orphans.supervisor()

    def start(self) -> None:
        """In a session of its own: Ctrl-C in the terminal is for `up`, which ends the agent in order."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli.main", "agent"],
            stdin=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
            preexec_fn=in_child(None, signal.SIGTERM),
        )

    def wait(self) -> None:
        """Block until it has ended, for whatever reason. An agent whose supervisor goes on has not."""
        if self._process is not None:
            self._process.wait()
        while (survivor := orphans.supervisor()) is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(survivor, 0)

    def stop(self) -> None:
        """Ask it to drain, and wait; one that does not come to an end is killed."""
        pid = self.pid
        if pid is None:
            return
        for number, patience_s in ((signal.SIGTERM, self._patience_s), (signal.SIGKILL, _GRACE_S)):
            sent = time.monotonic()
            _send(pid, number)
            deadline = sent + patience_s
            while orphans.running(pid) and (now := time.monotonic()) < deadline:
                if self._hurried and now > sent + _AGAIN_S:
                    sent = now
                    _send(pid, number)
                time.sleep(0.02)

    def hurry(self) -> None:
        """A second SIGTERM, repeated by `stop`: it ends without waiting for its tasks."""
        self._hurried = True
        if (pid := self.pid) is not None:
            _send(pid, signal.SIGTERM)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)

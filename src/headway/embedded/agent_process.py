"""The agent of `headway up`: a child process of its own, since it must survive what happens to the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from headway.config import Settings, environment
from headway.embedded.privileges import in_child

_GRACE_S = 15.0  # on top of the time it waits for tasks: ending them, and the last reports


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

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

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
        """Block until it has ended, for whatever reason."""
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """Ask it to drain, and wait; one that does not come to an end is killed."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def hurry(self) -> None:
        """A second SIGTERM: it ends without waiting for its tasks."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)

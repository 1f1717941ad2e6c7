"""`current().once(key)`: an effect that happens once though the task runs again (H10).

    with headway.current().once("pay-42") as claim:
        if claim:
            claim.value = bank.transfer(...)

Leaving the block without an exception says that it is done; an exception gives the claim up, so that the next attempt tries. An
attempt that dies inside the block leaves it uncertain: only the other side (the bank) knows. The next attempt gets a claim that is
False and `uncertain`; with `again=True` it does the effect once more, which is right when the other side recognises the key.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import msgspec

from headway.client import face, subtasks
from headway.client.face import Client

_encode = msgspec.json.Encoder().encode


class Claim:
    """What was answered: `yours`, `done`, `uncertain` or `taken` (another task does it). True when it is yours to do."""

    def __init__(self, client: Client, task: str, attempt: int, key: str, *, again: bool) -> None:
        self._client, self._task, self._attempt, self.key = client, task, attempt, key
        answer = self._say("claim", again=again)
        self.state: str = answer["state"]
        self.value: Any = answer["value"]  # what was left by who did it; set it to leave one
        self._open = self.state == "yours"

    def __bool__(self) -> bool:
        return self.state == "yours"

    def __repr__(self) -> str:
        return f"<once {self.key!r}: {self.state}>"

    @property
    def uncertain(self) -> bool:
        """An earlier attempt began it and died: nobody here knows whether it happened."""
        return self.state == "uncertain"

    def done(self, value: Any = None) -> None:
        """It has happened. Later runs are told, with the value."""
        self.value = self.value if value is None else value
        self._say("done", value=self.value)
        self._open = False

    def release(self) -> None:
        """It has not happened, and may be tried by the next attempt."""
        self._say("release")
        self._open = False

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open and error is None:
            self.done()
        elif self._open and isinstance(error, Exception):
            self.release()

    def _say(self, step: str, **more: Any) -> dict[str, Any]:
        body = _encode({"key": self.key, "attempt": self._attempt, "step": step, **more})
        return self._client.thread.run(self._client.aio.once(self._task, body))


def claim(task: str, attempt: int, key: str, *, again: bool) -> Claim:
    """Ask for the effect as the running task."""
    return Claim(subtasks.client() or face.active(), task, attempt, key, again=again)

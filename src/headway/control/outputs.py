"""Whole outputs, read from the object store that agents put them into (H9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from headway.errors import NotFound, Unavailable
from headway.wire.objects import key_of, open_store


@dataclass
class Outputs:
    url: str | None  # of the store; None: there is none
    _store: Any = None

    async def whole(self, task: int, attempt: int) -> AsyncIterator[bytes]:
        """Everything an attempt wrote, if it was too much for the database."""
        if self.url is None:
            raise NotFound("no whole outputs are kept here", hint="the operator sets output_store")
        import obstore

        if self._store is None:
            self._store = open_store(self.url)
        try:
            found = await obstore.get_async(self._store, key_of(task, attempt))
        except FileNotFoundError:
            raise NotFound(
                f"attempt {attempt} of task {task} has no whole output",
                hint="it was small enough to be kept with the task, or is on its way",
            ) from None
        except Exception as error:  # each kind of store has errors of its own
            raise Unavailable(f"the store of outputs does not answer: {error}") from error
        return _pieces(found)


async def _pieces(found: Any) -> AsyncIterator[bytes]:
    async for piece in found.stream():
        yield bytes(piece)

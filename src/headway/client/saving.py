"""`current().checkpoint(data)` and `.last_checkpoint()`: values that outlive the attempt (H8).

A function of a warm process saves on a server, and what it saved is durable when the call returns. A program saves into its
checkpoint folder, which its agent carries to a server a moment later, and before the end of an attempt that did not succeed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from headway.client.context import Current
from headway.errors import NotFound

if TYPE_CHECKING:
    from headway.client.face import Client

FILE = "value"  # in the checkpoint folder
_JSON, _BYTES = b"j", b"b"
_here: dict[int | str, bytes] = {}  # of tasks that run eagerly, without any server


def save(current: Current, data: Any) -> None:
    content = _BYTES + data if isinstance(data, bytes) else _JSON + _encoded(data)
    folder = os.environ.get("HEADWAY_CHECKPOINT_DIR")
    if current.ask_place is not None:
        client = _client()
        client.thread.run(client.aio.save_checkpoint(current.task_id, content))
    elif folder:
        _write(folder, content)
    else:
        _here[current.id] = content


def last(current: Current, default: Any) -> Any:
    content = _last(current)
    if content is None:
        return default
    return content[1:] if content[:1] == _BYTES else msgspec.json.decode(content[1:])


def _last(current: Current) -> bytes | None:
    folder = os.environ.get("HEADWAY_CHECKPOINT_DIR")
    if current.ask_place is not None:
        client = _client()
        try:
            return client.thread.run(client.aio.last_checkpoint(current.task_id))
        except NotFound:
            return None
    if not folder:
        return _here.get(current.id)
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(folder: str, content: bytes) -> None:
    """Whole or not at all, also after a power cut."""
    path = os.path.join(folder, FILE)
    with open(f"{path}.tmp", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def _encoded(data: Any) -> bytes:
    try:
        return msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"a {type(data).__name__} cannot be saved as JSON: {error}; save plain values, or bytes") from None


def _client() -> Client:
    from headway.client import subtasks  # it needs much, and few tasks save anything

    client = subtasks.client()
    if client is None:
        raise RuntimeError("this process runs no task")
    return client

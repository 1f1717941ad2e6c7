"""Files of this machine that go along with a task: `upload:PATH` becomes the address the server gave its content (H1)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headway.domain.content import UPLOAD, ArchiveSpec, uploaded
from headway.errors import InvalidInput

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.cli.work import Work


async def send_files(server: Server, work: Work) -> None:
    """Upload what the work names, each file once, and put the addresses in."""
    sent: dict[str, str] = {}
    if work.task is not None:
        work.task = await _in_fields(server, work.task, sent)
    for tree in work.trees:
        for task in tree.tasks:
            task.spec.executable = await _address(server, task.spec.executable, sent)
            for number, archive in enumerate(task.spec.archives):
                source = archive if isinstance(archive, str) else archive.source
                address = await _address(server, source, sent) or source
                task.spec.archives[number] = (
                    address if isinstance(archive, str) else ArchiveSpec(address, archive.checksum, archive.into)
                )


async def send_files_of(server: Server, bodies: list[dict[str, Any]]) -> None:
    """The same for schedules as the API takes them."""
    sent: dict[str, str] = {}
    for body in bodies:
        if "task" in body:
            body["task"] = await _in_fields(server, body["task"], sent)
        if "tasks" in body:
            body["tasks"] = [await _in_fields(server, task, sent) for task in body["tasks"]]


async def _in_fields(server: Server, fields: dict[str, Any], sent: dict[str, str]) -> dict[str, Any]:
    found = dict(fields)
    if "executable" in found:
        found["executable"] = await _address(server, found["executable"], sent)
    if "archives" in found:
        found["archives"] = [await _address(server, a, sent) if isinstance(a, str) else a for a in found["archives"]]
    return found


async def _address(server: Server, source: str | None, sent: dict[str, str]) -> str | None:
    if not source or not source.startswith(UPLOAD) or uploaded(source):
        return source
    if source not in sent:
        sent[source] = await _upload(server, source.removeprefix(UPLOAD))
    return sent[source]


async def _upload(server: Server, path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be uploaded: {error.strerror}", field="executable") from None
    target = f"/v1/uploads?name={quote(os.path.basename(path), safe='')}"
    kind = "application/octet-stream"
    answer = await server.send("POST", target, dict[str, Any], content, content_type=kind, timeout=300.0)
    return str(answer["executable"])

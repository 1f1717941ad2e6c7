"""`submit`, `wait` and `result` inside a task, without what makes a command slow to start (C4).

A script starts the command for every subtask it submits and every result it asks for, and most of what that costs is the import of
Typer, asyncio and msgspec. So the plain forms are read and answered here, with nothing but sockets and JSON. What is not plain (another
option, TLS, an answer that is no success) is left to the ordinary command, which starts over: a submission has its key, so it counts once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from headway.client.inside import REQUEUE, Inside, of
from headway.version import VERSION
from headway.wire import PROTOCOL, PROTOCOL_HEADER

PATIENCE_S = 30.0
_FINAL = ("succeeded", "failed", "cancelled", "skipped", "expired")
_decode = json.JSONDecoder().raw_decode

Ask = Callable[[str, str, Any], str]


class NotPlain(Exception):
    """The ordinary command must do this."""


def answer(word: str, words: Sequence[str]) -> int | None:
    """The exit code of the command, or None when it is not plain."""
    token = os.environ.get("HEADWAY_TOKEN")
    url, inside = os.environ.get("HEADWAY_URL", ""), of(token)
    if inside is None:
        return None
    do = {"submit": _submit, "wait": _wait, "result": _result}[word]
    try:
        code, said = do(lambda *what: _ask(url, token or "", *what), inside, words)
    except (NotPlain, OSError, ValueError, KeyError, IndexError):
        return None
    if said:
        print(said, flush=True)
    return code


def _submit(ask: Ask, inside: Inside, words: Sequence[str]) -> tuple[int, str]:
    spec = spec_of(words)
    if inside.holds(spec["workdir"]):
        del spec["workdir"]
    with inside.claim([encode(spec)]) as [key]:
        accepted = json.loads(ask("POST", "/v1/tasks", {"idempotency_key": key, **spec}))
        task: str = accepted["id"]
    inside.submitted([task])
    if accepted.get("warning"):
        print(f"headway: note: {accepted['warning']}", file=sys.stderr)
    return 0, task


def _wait(ask: Ask, inside: Inside, words: Sequence[str]) -> tuple[int, str]:
    """Only whether it must wait on: what ended is told by the ordinary command."""
    asked = _own(inside, words) or inside.children
    if not asked:
        raise NotPlain
    done = json.loads(ask("POST", "/v1/tasks/wait", {"ids": asked, "timeout": 0.0}))["done"]
    pending = [one for one in asked if one not in {task["id"] for task in done}]
    if not pending:
        raise NotPlain
    inside.suspended(pending)
    return REQUEUE, ""


def _result(ask: Ask, inside: Inside, words: Sequence[str]) -> tuple[int, str]:
    [task] = _own(inside, words)
    found = dict(_members(ask("GET", f"/v1/tasks/{task}", None)))
    state = json.loads(found["state"])
    if state not in _FINAL:
        inside.suspended([task])
        return REQUEUE, ""
    if state != "succeeded":
        raise NotPlain
    return 0, found["result"]


def spec_of(words: Sequence[str]) -> dict[str, Any]:
    """The task that `submit` describes, word for word as the ordinary command says it: its key is made of that."""
    at = words.index("--")
    given: dict[str, Any] = {"name": None, "env": {}, "resources": None}
    rest = iter(words[:at])
    for option in rest:
        option, equals, value = option.partition("=") if option.startswith("--") else (option, "", "")
        value = value if equals else next(rest, "")
        if option == "--env":
            key, equals, text = value.partition("=")
            given["env"][key] = text
            if not equals or not key:
                raise NotPlain
        elif option in ("--name", "--resources") and value and "=" not in value:
            given[option[2:]] = value
        elif option not in ("-o", "--output") or value not in ("quiet", "table"):
            raise NotPlain
    if at + 1 == len(words):
        raise NotPlain
    spec = {field: value for field, value in given.items() if value}
    return {**spec, "command": list(words[at + 1 :]), "workdir": os.getcwd()}


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _own(inside: Inside, words: Sequence[str]) -> list[str]:
    """Ids of this attempt's own subtasks; whatever else is given is not plain."""
    if not set(words) <= set(inside.children):
        raise NotPlain
    return list(words)


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The members of a JSON object as the server writes it (no white space), each value as it stands there."""
    at = 1
    while text[at] != "}":
        name, at = _decode(text, at + (text[at] == ","))
        _, end = _decode(text, at + 1)
        yield name, text[at + 1 : end]
        at = end


def _ask(url: str, token: str, method: str, path: str, body: Any) -> str:
    """One request on a connection of its own; the text of an answer that is a success."""
    content = b"" if body is None else encode(body)
    line, host = _connect(url)
    with line:
        head = [
            f"{method} {path} HTTP/1.1", f"host: {host}", f"authorization: Bearer {token}", f"user-agent: headway/{VERSION}",
            f"{PROTOCOL_HEADER}: {PROTOCOL}", "content-type: application/json", f"content-length: {len(content)}", "connection: close",
        ]  # fmt: skip
        line.sendall("\r\n".join([*head, "", ""]).encode() + content)
        with line.makefile("rb") as answered:
            if answered.readline().split()[1] not in (b"200", b"201"):
                raise NotPlain
            headers = dict(_headers(answered))
            return answered.read(int(headers[b"content-length"])).decode()


def _headers(answered: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    while (header := answered.readline()) not in (b"\r\n", b""):
        name, _, value = header.partition(b":")
        yield name.strip().lower(), value.strip()


def _connect(url: str) -> tuple[socket.socket, str]:
    kind, _, where = url.partition(":")
    host, _, port = where.removeprefix("//").rpartition(":")
    if kind == "unix":
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(PATIENCE_S)
        line.connect(where)
        return line, "headway"
    if kind != "http" or not host or not port.isdigit():
        raise NotPlain
    return socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S), f"{host}:{port}"

"""Inside a task the plain forms of `submit`, `wait` and `result` start light, and say what the ordinary commands say (C4)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.cli import light
from tests.support.scripted_api import accepted, problem, task_view
from tests.support.scripted_http import Request, Server, reply, serving

HEAVY = ("typer", "asyncio", "msgspec")
PLAIN = [
    ["--", "true"],
    ["-o", "quiet", "--name", "a b", "--", "sh", "-c", 'echo "1" \\ \t\n\x7f > $R', "ü€😀"],
    ["--env", "A=1", "--resources=regular", "--env=B=x=y", "--name=n", "--", "./run.sh", "-o", "json", "--", "x"],
    ["--output", "table", "--", "printf", "".join(map(chr, range(1, 32)))],
]
NOT_PLAIN = [
    ["-o", "json", "--", "true"],
    ["--attempts", "3", "--", "true"],
    ["--resources", "cpus=1", "--", "true"],
    ["--env", "A", "--", "true"],
    ["--name", "--", "true"],
    ["tree.yaml"],
    ["--"],
]


class Api:
    """Answers as a server does: JSON without white space."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.seen: list[Request] = []

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.seen.append(request)
        found = self.answers[request.method.lower() if request.path != "/v1/tasks/wait" else "wait"]
        writer.write(found if isinstance(found, bytes) else reply(200, msgspec.json.encode(found)))


async def inside(server: Server, journal: Path, *words: str, light: bool = True) -> tuple[int, str, str, list[str]]:
    """Run a command as a task does; its code, what it said, and which of the heavy packages it loaded."""
    program = (
        "import sys\nfrom headway.cli import main, light\n"
        + ("" if light else "light.answer = lambda *_: None\n")
        + f"code = main.main({list(words)!r})\n"
        + f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\nsys.exit(code)\n"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    env |= {"HEADWAY_URL": server.url, "HEADWAY_TOKEN": "hwt_1_1_x", "HEADWAY_SUBTASKS": str(journal)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    *said, loaded = err.decode().split("\n")[:-1]
    return process.returncode or 0, out.decode(), "\n".join(said), loaded.split()


@pytest.mark.parametrize("words", PLAIN)
async def test_a_submission_says_the_same_and_has_the_same_key_as_the_ordinary_one(words: list[str], tmp_path: Path) -> None:
    api = Api(post=accepted("7"))
    async with serving(api) as server:
        first = await inside(server, tmp_path / "light", "submit", *words)
        second = await inside(server, tmp_path / "ordinary", "submit", *words, light=False)
    assert first == (0, "7\n", "", [])
    assert second[:3] == (0, "7\n", "")
    assert set(second[3]) == set(HEAVY)
    assert (tmp_path / "light").read_text() == (tmp_path / "ordinary").read_text()
    assert api.seen[0].body == api.seen[1].body


@pytest.mark.parametrize("words", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_ordinary_command(words: list[str]) -> None:
    with pytest.raises((light.NotPlain, ValueError)):
        light.spec_of(words)


async def test_a_refused_submission_is_made_once_more_under_its_key_and_tells_why(tmp_path: Path) -> None:
    api = Api(post=problem(422, "invalid_input"))
    async with serving(api) as server:
        code, _, said, _ = await inside(server, tmp_path / "journal", "submit", "--", "true")
    assert code == 65
    assert "what was wrong" in said
    assert len(api.seen) == 2
    assert api.seen[0].body == api.seen[1].body
    words = [line.partition(" ")[0] for line in (tmp_path / "journal").read_text().splitlines()]
    assert words == ["said", "unsaid", "said", "unsaid"]


async def test_a_result_is_printed_as_it_is_and_waited_for_by_ending(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("child 7\n")
    raw = '{"a": 1.50, "ü": [1e5, null]}'
    ended = msgspec.json.encode(task_view("7", result=msgspec.Raw(raw.encode())))
    async with serving(Api(get=reply(200, ended))) as server:
        assert await inside(server, tmp_path / "journal", "result", "7") == (0, raw + "\n", "", [])
    async with serving(Api(get=task_view("7", "running"))) as server:
        assert await inside(server, tmp_path / "journal", "result", "7") == (85, "", "", [])
    assert (tmp_path / "journal").read_text() == "child 7\nwaits 7\n"
    async with serving(Api(get=task_view("7", "failed", exit_code=3))) as server:
        code, _, said, _ = await inside(server, tmp_path / "journal", "result", "7")
    assert code == 3
    assert "task 7 failed" in said


async def test_a_wait_ends_the_task_until_all_have_ended(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("child 7\nchild 8\n")
    half = {"done": [task_view("7")], "pending": ["8"]}
    async with serving(Api(wait=half)) as server:
        assert await inside(server, tmp_path / "journal", "wait") == (85, "", "", [])
    assert (tmp_path / "journal").read_text().endswith("waits 8\n")
    whole = {"done": [task_view("7")], "pending": []}
    async with serving(Api(wait=whole, get=task_view("7"))) as server:
        code, out, _, _ = await inside(server, tmp_path / "journal", "wait", "7")
    assert code == 0
    assert "succeeded" in out

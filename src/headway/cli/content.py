"""`secret set|ls|rm`, `pin ls|rm`, `once KEY` and `runner check`: what tasks may know, run and do once, and what calls their functions."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headway.cli.terminal import Terminal, command, group, table
from headway.errors import InvalidInput

if TYPE_CHECKING:
    from headway.cli.session import Server

secret = group(
    "Secrets: values that tasks are granted by name. Nobody can read them back.",
    examples=[
        "headway secret set db-password < password.txt",
        "headway secret ls",
        "headway submit --secret db-password -- ./load.sh",
    ],
)
pin = group(
    "Pins: what URLs without a checksum were when they were first fetched.",
    examples=["headway pin ls", "headway pin rm https://files.example/job.sh"],
)
once_app = group("An effect that happens once.")
runner = group("Warm runners for other languages.", examples=["headway runner check --functions functions.lua -- lua runner.lua"])
TRY_LATER = 75


@command(secret, "set", examples=["headway secret set db-password < password.txt", "headway secret set api-key --value s3cr3t"])
def set_(
    terminal: Terminal,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    value: Annotated[str | None, typer.Option("--value", help="The value; from standard input when not given.")] = None,
) -> None:
    """Set a secret. From standard input one newline at the end is left out."""
    from headway.cli.session import talk

    content = sys.stdin.read().removesuffix("\n") if value is None else value

    async def ask(server: Server) -> None:
        from msgspec.json import encode

        view = await server.send("PUT", f"/v1/secrets/{quote(name, safe='')}", dict[str, Any], encode({"value": content}))
        terminal.answer(view, ids=[name], table=lambda: f"{name} is set")

    talk(terminal, ask)


@command(secret, "ls", examples=["headway secret ls", "headway secret ls --json"])
def ls(terminal: Terminal) -> None:
    """List the names of secrets, never their values."""
    from headway.cli.session import talk

    async def ask(server: Server) -> None:
        found = await server.get("/v1/secrets", list[dict[str, Any]])
        rows = [[one["name"], _when(one["changed_at"])] for one in found]
        terminal.answer(found, ids=[one["name"] for one in found], table=lambda: table(["NAME", "CHANGED"], rows))

    talk(terminal, ask)


def _when(text: str) -> str | None:
    """A moment of an answer, by the clock here."""
    import datetime

    from headway.cli.moments import when

    return when(datetime.datetime.fromisoformat(text))


@command(secret, "rm", examples=["headway secret rm db-password"])
def rm(terminal: Terminal, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Remove a secret. Tasks that name it and have not started end as not startable."""
    from headway.cli.session import talk

    async def ask(server: Server) -> None:
        view = await server.send("DELETE", f"/v1/secrets/{quote(name, safe='')}", dict[str, Any])
        terminal.answer(view, ids=[name], table=lambda: f"{name} is removed")

    talk(terminal, ask)


@command(pin, "ls", examples=["headway pin ls", "headway pin ls --json"])
def ls_pins(terminal: Terminal) -> None:
    """List URLs and the checksums that they were pinned to."""
    from headway.cli.session import talk

    async def ask(server: Server) -> None:
        found = await server.get("/v1/pins", list[dict[str, Any]])
        rows = [[one["url"], f"sha256:{one['sha256']}", _when(one["pinned_at"])] for one in found]
        terminal.answer(found, ids=[one["url"] for one in found], table=lambda: table(["URL", "CHECKSUM", "PINNED"], rows))

    talk(terminal, ask)


@command(pin, "rm", examples=["headway pin rm https://files.example/job.sh"])
def rm_pin(terminal: Terminal, address: Annotated[str, typer.Argument(metavar="URL")]) -> None:
    """Forget what a URL was: the next fetch pins it anew."""
    from headway.cli.session import talk

    async def ask(server: Server) -> None:
        view = await server.send("DELETE", f"/v1/pins?url={quote(address, safe='')}", dict[str, Any])
        terminal.answer(view, ids=[address], table=lambda: f"{address} is no longer pinned")

    talk(terminal, ask)


@command(
    once_app,
    "once",
    examples=[
        "headway once pay-invoice-42 -- ./pay.sh 42",
        "if headway once mail-42; then ./mail.sh && headway once mail-42 --done; fi",
        "headway once pay-invoice-42 --again -- ./pay.sh 42",
    ],
)
def once(
    terminal: Terminal,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    done: Annotated[bool, typer.Option("--done", help="The effect has happened.")] = False,
    release: Annotated[bool, typer.Option("--release", help="It has not happened: give the claim up.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Do it though an earlier attempt may have.")] = False,
    value: Annotated[str | None, typer.Option("--value", help="With --done: a value for later runs.", metavar="JSON")] = None,
) -> int:
    """Inside a task: claim an effect, so that it happens once though the task runs again. Exit 0: it is yours to do."""
    task, attempt = os.environ.get("HEADWAY_TASK_ID"), os.environ.get("HEADWAY_ATTEMPT")
    if not task or not attempt:
        raise InvalidInput("this is no task: HEADWAY_TASK_ID is not set", hint="`headway once` is for programs that Headway runs")
    claim = _Claim(terminal, f"/v1/tasks/{quote(task, safe='')}/once", {"key": key, "attempt": int(attempt)})
    if done or release:
        from headway.cli.options import value_or_file

        claim.say("done" if done else "release", value=value_or_file(value, "--value") if value else None)
        return 0
    state = claim.say("claim", again=again)["state"]
    if not terminal.rest:
        print(state)
        return 0 if state == "yours" else 1
    return claim.run(state, terminal.rest)


class _Claim:
    def __init__(self, terminal: Terminal, path: str, about: dict[str, Any]) -> None:
        self._terminal, self._path, self._about = terminal, path, about

    def say(self, step: str, **more: Any) -> dict[str, Any]:
        from headway.cli.session import talk

        async def ask(server: Server) -> dict[str, Any]:
            return await server.post(self._path, dict[str, Any], {**self._about, "step": step, **more})

        return talk(self._terminal, ask)

    def run(self, state: str, words: list[str]) -> int:
        """Run the command if the effect is ours: done when it succeeds, given up when it fails."""
        key = self._about["key"]
        if state == "done":
            return 0
        if state == "taken":
            print(f"headway: another task is doing {key!r}", file=sys.stderr)
            return TRY_LATER
        if state != "yours":
            why = "an earlier attempt began it, and nobody knows how that ended"
            print(f"headway: {key!r}: {why}; look, then use --again or --done", file=sys.stderr)
            return 1
        try:
            code = subprocess.run(words).returncode
        except OSError as error:
            print(f"headway: {words[0]}: {error.strerror}", file=sys.stderr)
            code = 127
        self.say("release" if code else "done")
        return code if code >= 0 else 128 - code


@command(
    runner,
    "check",
    examples=[
        "headway runner check --functions runners/conformance/functions.mjs -- node runners/node.mjs",
        "headway runner check --functions functions.lua -- lua my-runner.lua",
    ],
)
def check(
    terminal: Terminal,
    functions: Annotated[str, typer.Option("--functions", help="File with the functions of the check.", metavar="FILE")],
) -> int:
    """Put a runner through the conformance test of docs/runner-protocol.md; 0 when it passes."""
    from headway.agent.conformance import check as check_runner

    if not terminal.rest:
        raise typer.BadParameter("the runner's command line is missing: `-- CMD...`", param_hint="CMD")
    results = check_runner(list(terminal.rest), os.path.abspath(functions))
    rows = [["ok" if not one.why else "FAILED", one.what, one.why] for one in results]
    value = [{"check": one.what, "ok": not one.why, "why": one.why} for one in results]
    terminal.answer(value, ids=[one.what for one in results if one.why], table=lambda: table(["", "CHECK", ""], rows))
    return int(any(one.why for one in results))

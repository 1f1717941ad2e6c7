"""The `headway` command: imports only the command called, and turns every error into a message and an exit code.

Commands are listed here in a table rather than in one Typer tree, because importing them all would cost more than the
0.2 s a command may take to start; `headway --help` needs no import at all.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from headway.errors import HeadwayError


class Exit(IntEnum):
    """Headway's own exit codes. `run` and `wait` return the work's own code, and FAILED when it has none."""

    OK = 0
    FAILED = 1  # the work failed, or what was asked for is not there
    USAGE = 64  # the command line or a setting is wrong
    BAD_FILE = 65  # a file or a request is wrong
    NO_SERVER = 69  # no server answers, or it cannot serve now
    INTERNAL = 70  # a bug of ours
    LIMIT = 75  # limit exceeded: try again later
    FORBIDDEN = 77  # no token, or the wrong one
    TIMED_OUT = 124  # what was waited for did not come in time
    INTERRUPTED = 130  # Ctrl-C


EXIT_CODES: dict[str, Exit] = {
    "internal": Exit.INTERNAL,
    "invalid_input": Exit.BAD_FILE,
    "unknown_field": Exit.BAD_FILE,
    "cyclic_graph": Exit.BAD_FILE,
    "impossible_tree": Exit.BAD_FILE,
    "too_large": Exit.BAD_FILE,
    "unsatisfiable_resources": Exit.BAD_FILE,
    "idempotency_conflict": Exit.BAD_FILE,
    "limit_exceeded": Exit.LIMIT,
    "cannot_promise": Exit.LIMIT,
    "not_found": Exit.FAILED,
    "conflict": Exit.FAILED,
    "unauthorized": Exit.FORBIDDEN,
    "forbidden": Exit.FORBIDDEN,
    "version_mismatch": Exit.NO_SERVER,
    "unavailable": Exit.NO_SERVER,
    "corrupt": Exit.FAILED,
    "config": Exit.USAGE,
    "database_in_use": Exit.NO_SERVER,
    "stale_epoch": Exit.INTERNAL,
    "task_failed": Exit.FAILED,
}


class Entry(NamedTuple):
    """Where a command lives ("module:attribute" inside headway.cli; the attribute is a Typer app) and what it does."""

    where: str
    summary: str
    takes_command: bool = False  # what follows `--` is a command to run


SECTIONS: dict[str, dict[str, Entry]] = {
    "Start": {
        "up": Entry("service:app", "Start everything on this machine: database, server, agent."),
        "server": Entry("service:app", "Start a server (API and duties) on a database."),
        "agent": Entry("service:app", "Start an agent, which runs tasks on this machine."),
    },
    "Work": {
        "run": Entry("run:app", "Run work and follow it; returns its exit code.", takes_command=True),
        "submit": Entry("submit:app", "Submit work and print its ids.", takes_command=True),
        "apply": Entry("schedule:app", "Make schedules what a file says; applied again, nothing changes."),
        "schedule": Entry("schedule:schedule", "Schedules: ls, show, pause, trigger, backfill, stop-backfill ..."),
        "once": Entry("content:once_app", "Inside a task: do something once though the task runs again.", takes_command=True),
        "validate": Entry("files:app", "Check a task file; says line, column and what was expected."),
        "plan": Entry("files:app", "Show how a file's tasks would run: levels and critical path."),
        "schema": Entry("files:app", "Print the JSON Schema of task files, for editors."),
    },
    "Look": {
        "ls": Entry("tasks:app", "List tasks, or trees, the newest first."),
        "show": Entry("tasks:app", "Show everything known about a task or a tree."),
        "logs": Entry("output:app", "Print what a task wrote."),
        "wait": Entry("outcome:app", "Wait for tasks to end; returns the first exit code that is not 0."),
        "result": Entry("outcome:app", "Print the result of a task as JSON; with --timeout, wait for it."),
        "events": Entry("webhook:watch", "Print what happened to tasks, or what happens."),
        "explain": Entry("explain:app", "Say why a task does not run, and when it will."),
        "top": Entry("top:app", "Watch rates, queues, nodes and running tasks live."),
        "stats": Entry("fleet:app", "Print the numbers of now: states, rates, queues, nodes."),
        "limits": Entry("tenants:limits", "Show what you may use, use, and have left."),
    },
    "Change": {
        "cancel": Entry("change:app", "Cancel tasks or trees, with all their processes."),
        "pause": Entry("change:app", "Pause tasks: freeze running ones, keep waiting ones from starting."),
        "resume": Entry("change:app", "Let paused tasks go on."),
        "signal": Entry("change:app", "Send a signal to the programs of running tasks."),
        "change": Entry("explain:app", "Change a waiting task in place."),
        "retry": Entry("change:app", "Send dead letters again, as they were or after an edit."),
        "dead": Entry("dead:app", "Dead letters: ls, show, retry, purge."),
    },
    "Operate": {
        "node": Entry("fleet:node", "Nodes: ls, show, drain, undrain, rm."),
        "queue": Entry("queue:queue", "Queues: ls, create, set, pause, resume, delete."),
        "webhook": Entry("webhook:app", "Webhooks: create, ls, set, rotate, test, deliveries, replay."),
        "secret": Entry("content:secret", "Secrets of tasks: set, ls, rm."),
        "pin": Entry("content:pin", "What URLs were when they were first fetched: ls, rm."),
        "runner": Entry("content:runner", "Warm runners for other languages: check.", takes_command=True),
        "tier": Entry("tenants:tier", "Tiers of resources: ls, set, rm."),
        "tenant": Entry("tenants:tenant", "Tenants and subscriptions: create, ls, set, show."),
        "key": Entry("tenants:key", "Keys of callers: create, ls, revoke."),
        "audit": Entry("tenants:audit", "Who did what, the newest first."),
        "db": Entry("database:app", "The database: migrate, status."),
        "doctor": Entry("doctor:app", "Check machine, database and server, and say what to do."),
        "simulate": Entry("simulate:app", "Simulate a day: waiting, misses, fairness, fleet."),
        "bench": Entry("bench:app", "Measure throughput and latency on this machine."),
    },
}
COMMANDS: dict[str, Entry] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
PLAIN_INSIDE = ("submit", "wait", "result")  # what a task asks for again and again: see light.py
AMOUNTS = ("cpus", "memory", "disk", "iops", "bandwidth", "ports")  # options elsewhere, parts of --resources here


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    _replace_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    word = arguments[0] if arguments else "--help"
    if word in ("--help", "-h", "help") and len(arguments) < 2:
        print(overview())
        return Exit.OK
    if word in ("--version", "-V", "version"):
        return _version()
    if word == "help":
        word, arguments = arguments[1], [arguments[1], *arguments[2:], "--help"]
    if word not in COMMANDS:
        return _unknown(word)
    if word in PLAIN_INSIDE and "HEADWAY_SUBTASKS" in os.environ:
        from headway.cli import light

        if (code := light.answer(word, arguments[1:])) is not None:
            return code
    return _guarded(word, arguments[1:])


def _replace_closed_streams() -> None:
    """A script may have closed some (`2>&-`): what is said there goes nowhere, and no connection takes their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def overview() -> str:
    """What `headway --help` prints."""
    width = max(len(name) for name in COMMANDS)
    lines = [
        "Usage: headway COMMAND [OPTIONS] [ARGUMENTS]",
        "",
        "Headway runs tasks: any work, on any of your machines, never lost.",
    ]
    for title, entries in SECTIONS.items():
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {entry.summary}" for name, entry in entries.items())]
    lines += [
        "",
        "Every command takes -o table|json|quiet (--json is -o json) and --help.",
        "The server is the one of --url or HEADWAY_URL, else the running `headway up`.",
        "",
        "Examples:",
        "  headway run -- echo hello",
        "  headway submit --attempts 3 -- make -C /srv/site",
        "  headway ls --state failed --since 1h",
    ]
    return "\n".join(lines)


def _version() -> int:
    from importlib.metadata import version

    print(f"headway {version('headway')}")
    return Exit.OK


def _unknown(word: str) -> int:
    import difflib

    if word.startswith("-"):
        complain(f"{word!r} stands before the command", hint="options come after it: `headway ls --json`")
        return Exit.USAGE
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean `headway {near[0]}`?" if near else "`headway --help` lists the commands"
    complain(f"there is no command {word!r}", hint=hint)
    return Exit.USAGE


def _guarded(name: str, arguments: list[str]) -> int:
    """Run the command; every error ends here."""
    from headway.errors import HeadwayError

    try:
        return _call(name, arguments)
    except HeadwayError as error:
        return _tell(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _left_alone()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Typer makes this of it
            return _left_alone()
        # The benchmark reads its own words, and says itself what is wrong with them.
        return Exit.USAGE if stop.code == 2 else int(stop.code or 0)
    except OSError as error:
        full = error.errno == errno.ENOSPC  # the error does not say where, if it came of a write
        hint = "make room in the data folder (--data-dir, HEADWAY_DATA), or where the output goes; `headway doctor` looks" if full else None
        complain(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error), hint=hint)
        return Exit.FAILED
    except Exception:
        import traceback

        traceback.print_exc()
        complain("this is a bug of Headway, not of yours", hint="please report it with the lines above")
        return Exit.INTERNAL


def _left_alone() -> int:
    """The reader (head, less) went away: nothing is wrong. Without this, Python complains while it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK


def _call(name: str, arguments: list[str]) -> int:
    import importlib

    import typer.main

    entry, rest = COMMANDS[name], None
    if entry.takes_command and "--" in arguments:
        at = arguments.index("--")
        arguments, rest = arguments[:at], arguments[at + 1 :]
    module, _, attribute = entry.where.partition(":")
    command = typer.main.get_command(getattr(importlib.import_module(f"headway.cli.{module}"), attribute))
    command = getattr(command, "commands", {}).get(name, command)
    usage_error = cast(type[Exception], typer.BadParameter.__mro__[1])  # Typer keeps it private, but not its child
    try:
        code = command.main(args=arguments, prog_name=f"headway {name}", standalone_mode=False, obj=rest)
    except usage_error as error:
        return _usage(name, error)
    except typer.Abort:
        return Exit.INTERRUPTED
    return int(code or 0)


def _usage(name: str, error: Exception) -> int:
    message: str = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"headway {name}"
    message = message[:1].lower() + message[1:].rstrip(".")
    message = message.replace("not a valid int", "not a whole number").replace("not a valid float", "not a number")
    asked = str(getattr(error, "option_name", "")).lstrip("-")
    hint = f"say `--resources {asked}=...`" if asked in AMOUNTS else f"`{path} --help` tells what it takes"
    complain(message, where=path, hint=hint)
    return Exit.USAGE


def _tell(error: HeadwayError) -> int:
    where = error.extra.get("where") or error.extra.get("field")
    complain(error.detail, where=where, hint=error.advice)
    return EXIT_CODES[error.code]


def complain(what: str, *, where: str | None = None, hint: str | None = None) -> None:
    """Say on stderr what was wrong, where, and what to do."""
    print(f"headway: {what}", file=sys.stderr)
    if where and where not in what:
        print(f"  where: {where}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

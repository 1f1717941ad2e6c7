"""Writes the pages of docs/ that the code itself can tell: `python docs/generate.py`. A test compares them.

lifecycle.md comes from headway.domain.lifecycle, cli.md from the help of the commands.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path

from headway.cli.main import SECTIONS, Exit, main
from headway.domain.lifecycle import BLAME, TRANSITIONS, Outcome, State

FOLDER = Path(__file__).parent

STATES = {
    State.BLOCKED: ("waits for its dependencies", "created, pending, waiting"),
    State.SCHEDULED: ("waits for its time, first run or retry", "created, waiting"),
    State.READY: ("waits for room on a node", "pending, waiting"),
    State.LEASED: ("handed to a node, not begun", "enqueued, waiting"),
    State.RUNNING: ("resources allocated, the execution cap is counting", "started, in progress"),
    State.PAUSED: ("frozen, or checkpointed and waiting", "in progress"),
    State.SUCCEEDED: ("finished", "success, done"),
    State.FAILED: ("out of attempts, now a dead letter", "failure"),
    State.CANCELLED: ("a person or a program ended it", "failure"),
    State.SKIPPED: ("a dependency did not end as this task needed", "failure"),
    State.EXPIRED: ("waited beyond its limit", "failure"),
}
OUTCOMES = {
    Outcome.SUCCEEDED: "exit code 0, or the function returned",
    Outcome.ERROR: "another exit code, or an exception",
    Outcome.SIGNAL: "a signal ended it",
    Outcome.CAP_EXCEEDED: "ran longer than its execution cap",
    Outcome.OUT_OF_MEMORY: "used more memory than allowed",
    Outcome.TOO_MANY_PROCESSES: "started more processes than allowed",
    Outcome.DISK_FULL: "used more disk than allowed",
    Outcome.CANCELLED: "cancelled while it ran",
    Outcome.PRE_EMPTED: "made room for another",
    Outcome.REQUEUED: "exit code 85: run me again",
    Outcome.TRY_LATER: "exit code 75: try me again later",
    Outcome.NODE_LOST: "its node was lost",
    Outcome.RUNNER_CRASHED: "the process that ran its function ended",
    Outcome.NOT_STARTABLE: "no such program, interpreter or function on the node",
    Outcome.SUSPENDED: "waits for subtasks that it submitted",
}


def lifecycle() -> str:
    """The life of a task as a page: states, a diagram, every event, every outcome."""
    lines = [
        "# The life of a task",
        "",
        "Generated from `src/headway/domain/lifecycle.py`: change it there, then run `make docs`.",
        "",
        "One table says which event may take a task from which state to which. Every `UPDATE` in the SQL that moves a",
        "task names its event; a test compares the two, and in tests the database itself refuses any other move.",
        "",
        "## States",
        "",
        "| state | code | means | also called | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {state.word} | {state.value} | {means} | {also} | {'final' if state.final else ''} |"
        for state, (means, also) in STATES.items()
    ]
    lines += ["", "## Moves", "", "```mermaid", "stateDiagram-v2", *_diagram(), "```", ""]
    lines += ["| event | from | to | because |", "|---|---|---|---|"]
    lines += [
        f"| {event.value} | {_words(rule.sources) or '(new)'} | {_words(rule.targets)} | {rule.because} |"
        for event, rule in TRANSITIONS.items()
    ]
    lines += [
        "",
        "A wish to cancel is a column, not a state: a running task stays `running` until its node has ended it.",
        "",
        "## How an attempt ended",
        "",
        "`charged to` says which budget an attempt that did not succeed uses up: `attempts` (task, resource),",
        "`retry.node_losses` (node), or only the bound of 1,000 requeues (nobody).",
        "",
        "| outcome | code | means | charged to |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {outcome.word} | {outcome.value} | {means} | {BLAME[outcome].value if outcome in BLAME else ''} |"
        for outcome, means in OUTCOMES.items()
    ]
    return "\n".join(lines) + "\n"


def cli() -> str:
    """Every command with its help."""
    lines = [
        "# The command line",
        "",
        "Generated from the commands' own help: change it there, then run `make docs`.",
        "",
        "Every command takes `-o table|json|quiet` (`--json` is `-o json`) and `--help`. Answers go to standard output,",
        "everything else to standard error.",
        "",
        "## Exit codes",
        "",
        "`run` and `wait` return the exit code of the work. Headway's own:",
        "",
        "| code | name |",
        "|---|---|",
        *(f"| {code.value} | {code.name.lower().replace('_', ' ')} |" for code in Exit),
    ]
    for title, commands in SECTIONS.items():
        lines += ["", f"## {title}"]
        for name in commands:
            lines += ["", f"### headway {name}", "", "```text", _help(name), "```"]
            for inner in _inner(name):
                lines += ["", f"#### headway {name} {inner}", "", "```text", _help(name, inner), "```"]
    return "\n".join(lines) + "\n"


def _diagram() -> list[str]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for event, rule in TRANSITIONS.items():
        for source in [state.word for state in rule.sources] or ["[*]"]:
            for target in rule.targets:
                arrows.setdefault((source, target.word), []).append(event.value)
    return [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]


def _words(states: tuple[State, ...]) -> str:
    return ", ".join(state.word for state in states)


def _help(*words: str) -> str:
    """What `headway ... --help` prints, at a width that does not depend on who asks."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())


def _inner(name: str) -> list[str]:
    """The commands of a group, read from its help."""
    _, found, listed = _help(name).partition("\nCommands:\n")
    rows = listed.partition("\n\n")[0].splitlines() if found else []
    return [row.split()[0] for row in rows if row.startswith("  ") and not row.startswith("   ")]


PAGES: dict[str, Callable[[], str]] = {"lifecycle.md": lifecycle, "cli.md": cli}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (FOLDER / page).write_text(text())

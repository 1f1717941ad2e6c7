"""`validate`, `plan`, `schema`: task files, without a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.terminal import Terminal, command, group

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.treefile.model import Tree

app = group("Look at task files.")
MOST_PREDICTED = 5_000  # tasks that a server is asked about in one request

File = Annotated[str, typer.Argument(metavar="FILE", help="A task file (YAML or JSON).")]


@command(app, "validate", examples=["headway validate nightly.yaml", "headway validate nightly.yaml --param day=2026-11-15"])
def validate(terminal: Terminal, file: File, param: options.Params = None) -> None:
    """Check a task file; says line, column and what was expected."""
    from headway.cli.work import trees

    found = trees(file, param)
    value = {
        "valid": True,
        "trees": [{"name": tree.name, "tasks": len(tree.tasks), "warnings": tree.warnings} for tree in found],
    }
    terminal.answer(value, ids=[tree.name for tree in found], table=lambda: _valid(file, found))


@command(
    app,
    "plan",
    examples=[
        "headway plan nightly.yaml",
        "headway plan nightly.yaml --format mermaid",
        "headway plan nightly.yaml --json",
        "HEADWAY_URL=http://headway:8470 headway plan nightly.yaml    # with the times that earlier runs predict",
    ],
)
def plan(
    terminal: Terminal,
    file: File,
    param: options.Params = None,
    drawing: Annotated[str, typer.Option("--format", "--as", help="text, mermaid or dot.")] = "text",
) -> None:
    """Show how a file's tasks would run: levels and critical path; with a server, also how long it will take."""
    import headway.treefile.drawing as draw
    from headway.cli.work import trees

    kinds = ("text", "mermaid", "dot")
    if drawing not in kinds:
        raise typer.BadParameter(f"{drawing!r} is not one of {', '.join(kinds)}", param_hint="--format")
    found = trees(file, param)
    times = _times(terminal, found)

    def drawn() -> str:
        if drawing == "mermaid":
            return draw.mermaid(found, times)
        one = draw.dot if drawing == "dot" else draw.text
        return "\n\n".join(one(tree, times.get(tree.name, {})) for tree in found)

    terminal.answer(
        draw.plan_json(found, times),
        ids=[task.name for tree in found for task in tree.tasks],
        table=drawn,
    )


def _times(terminal: Terminal, found: list[Tree]) -> dict[str, dict[str, float]]:
    """What earlier runs predict, by tree and task. A plan needs no server: without one there are no times."""
    from headway.cli.session import talk
    from headway.cli.work import said
    from headway.client.discovery import find
    from headway.errors import HeadwayError
    from headway.wire.views.predictions import PredictionsView

    if find(terminal.settings()) is None:
        return {}

    async def ask(server: Server) -> dict[str, dict[str, float]]:
        times = {}
        for tree in found:
            if len(tree.tasks) <= MOST_PREDICTED:
                body = {"tasks": [said(task.spec) for task in tree.tasks]}
                answer = await server.post("/v1/predictions", PredictionsView, body)
                times[tree.name] = {name: one.seconds for name, one in answer.tasks.items() if one is not None}
        return {name: known for name, known in times.items() if known}

    try:
        return talk(terminal, ask)
    except HeadwayError as error:
        print(f"headway: note: without predicted times: {error.detail}", file=sys.stderr)
        return {}


@command(app, "schema", examples=["headway schema > headway.schema.json"])
def schema(terminal: Terminal) -> None:
    """Print the JSON Schema of task files, for editors."""
    from headway.treefile.schema import schema as task_files

    terminal.json(task_files())


def _valid(file: str, trees: list[Tree]) -> str:
    from headway.treefile.drawing import heading

    lines = [f"{file}: valid"]
    for tree in trees:
        lines.append(f"  {heading(tree)}")
        lines += [f"    note: {warning}" for warning in tree.warnings]
    return "\n".join(lines)

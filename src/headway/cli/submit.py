"""`submit FILE|-- CMD`: hand work over and go on; prints the ids."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options
from headway.cli.terminal import Terminal, command, group

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.cli.work import Work
    from headway.wire.views.tasks import Accepted, AcceptedMany

app = group("Submit work.")



@command(
    app,
    "submit",
    task_options=True,
    examples=[
        "headway submit -- make -C /srv/site",
        "headway submit nightly.yaml --param day=2026-11-15",
        "headway submit --attempts 3 --execution-cap 10m --label team=web -- ./report.sh",
        "headway submit --function pages:render --input '{\"page\": 7}'",
        "headway submit --function pages:render --inputs pages.ndjson",
        "headway submit --name tidy --schedule daily --timezone Europe/Berlin -- ./tidy.sh",
        "generate-tasks | headway submit -",
        "generate-tasks | headway submit --tree nightly -    # they name each other in `after`: one tree, of any size",
        "headway submit --for-each '[64, 256, 1024]' -- ./resize '${item}'",
    ],
)
def submit(
    terminal: Terminal,
    spec: dict[str, Any],
    file: options.Work = None,
    param: options.Params = None,
    inputs: options.Inputs = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", help="Run again: seconds, 10m, daily, cron.", metavar="WHEN")
    ] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", help="Time zone of the schedule.", metavar="ZONE")] = None,
    start: Annotated[str | None, typer.Option("--start", help="Not before this moment.", metavar="TIME")] = None,
    end: Annotated[str | None, typer.Option("--end", help="Not after this moment.", metavar="TIME")] = None,
    jitter: Annotated[str | None, typer.Option("--jitter", help="Each firing up to so much later.", metavar="DURATION")] = None,
    overlap: Annotated[str | None, typer.Option("--overlap", help="skip, queue, replace or allow.")] = None,
    misfire: Annotated[str | None, typer.Option("--misfire", help="skip, one or all.")] = None,
    tree: Annotated[str | None, typer.Option("--tree", help="The NDJSON is a tree of this name.", metavar="NAME")] = None,
) -> None:
    """Submit work and print its ids. What has a schedule is kept and runs by it."""
    from headway.cli.schedule import applied_line, apply_all, of_options
    from headway.cli.session import talk
    from headway.cli.work import read

    when = {"timezone": timezone, "start": start, "end": end, "jitter": jitter, "overlap": overlap, "misfire": misfire}
    work = read(file, terminal.rest, spec, params=param, inputs=inputs)
    if tree is not None and work.lines is None:
        raise typer.BadParameter("a tree is given as NDJSON: a FILE.ndjson or -", param_hint="--tree")
    work.tree_name = tree
    of_options(work, file, schedule, {word: value for word, value in when.items() if value is not None})
    note(work)

    async def ask(server: Server) -> None:
        kept = await apply_all(server, work.kept) if work.kept else []
        answers = await send(server, work)
        ids = [one.name for one in kept] + [one for answer in answers for one in ids_of(answer)]
        value = [*kept, *answers]
        lines = [*(applied_line(one) for one in kept), *(_for_people(answer) for answer in answers)]
        tell([answer.warning for answer in answers if answer.warning])
        terminal.answer(value[0] if len(value) == 1 else value, ids=ids, table=lambda: "\n".join(lines))

    talk(terminal, ask)


def ids_of(answer: Accepted | AcceptedMany) -> list[str]:
    """The ids of the tasks that were accepted."""
    return list(answer.ids) if hasattr(answer, "ids") else [answer.id]


def _for_people(answer: Accepted | AcceptedMany) -> str:
    """A tree's own id stands for its tasks: `show`, `wait` and `cancel` take it too."""
    return getattr(answer, "tree", None) or "\n".join(ids_of(answer))


def note(work: Work) -> None:
    """Tell people what the file says and has no effect."""
    tell(work.notes)


def tell(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"headway: note: {warning}", file=sys.stderr)


async def send(server: Server, work: Work) -> list[Accepted | AcceptedMany]:
    """Submit the work; what the server answered, tree by tree."""
    from urllib.parse import quote

    from headway.cli import inside
    from headway.cli.uploads import send_files
    from headway.cli.work import said
    from headway.wire.views.tasks import Accepted, AcceptedMany

    await send_files(server, work)
    if server.inside is not None:
        return await inside.send(server, server.inside, work)
    if work.lines is not None:
        kind = "application/x-ndjson"
        if work.tree_name is not None:
            path = f"/v1/trees/stream?name={quote(work.tree_name, safe='')}"
            return [await server.send("POST", path, AcceptedMany, work.lines, content_type=kind, timeout=900.0)]
        return [await server.send("POST", "/v1/tasks", AcceptedMany, work.lines, content_type=kind, timeout=300.0)]
    if work.inputs is not None:
        over = {"task": work.task, "inputs": work.inputs}
        return [await server.post("/v1/tasks", AcceptedMany, over, timeout=300.0)]
    if work.task is not None:
        return [await server.post("/v1/tasks", Accepted, work.task)]
    answers: list[Accepted | AcceptedMany] = []
    for tree in work.trees:
        body: dict[str, Any] = {"name": tree.name, "tasks": [said(task.spec) for task in tree.tasks]}
        if tree.strict:
            body["levels"] = "strict"
        answers.append(await server.post("/v1/trees", AcceptedMany, body, timeout=300.0))
    return answers

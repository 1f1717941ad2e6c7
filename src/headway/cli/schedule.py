"""`apply FILE` and `schedule ls|show|pause|resume|trigger|backfill|stop-backfill|delete`: work that runs again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headway.cli import options
from headway.cli.terminal import Terminal, command, fields, group, table
from headway.errors import InvalidInput

if TYPE_CHECKING:
    import datetime

    from headway.cli.session import Server
    from headway.cli.work import Work
    from headway.domain.schedule import ScheduleSpec
    from headway.treefile.model import Tree, TreeTask
    from headway.wire.views.schedules import AppliedView, FiringView, ScheduleView

app = group("Keep schedules.")
schedule = group(
    "Schedules: what runs again and again, and when.", examples=["headway schedule ls", "headway schedule show nightly"]
)

Name = Annotated[str, typer.Argument(metavar="NAME")]


@command(
    app,
    "apply",
    examples=["headway apply nightly.yaml", "headway apply nightly.yaml --param keep=30", "headway apply nightly.yaml --json"],
)
def apply(
    terminal: Terminal,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Task file with a schedule.")],
    param: options.Params = None,
) -> None:
    """Make schedules what a file says; applied again, nothing changes."""
    from headway.cli.session import talk
    from headway.cli.work import trees

    found = trees(file, param)
    for tree in found:
        if tree.schedule is None:
            raise InvalidInput(
                f"{file}: {tree.name!r} has no schedule",
                where=file,
                hint=f"add `schedule:`, or `headway submit {file}` runs it once",
            )
    asked = [body for tree in found for body in bodies(tree)]

    async def ask(server: Server) -> None:
        applied = await apply_all(server, asked)
        terminal.answer(applied, ids=[one.name for one in applied], table=lambda: "\n".join(applied_line(one) for one in applied))

    talk(terminal, ask)


async def apply_all(server: Server, asked: list[dict[str, Any]]) -> list[AppliedView]:
    from headway.cli.uploads import send_files_of
    from headway.wire.views.schedules import AppliedView

    await send_files_of(server, asked)
    return await server.post("/v1/schedules", list[AppliedView], asked, timeout=120.0)


def of_options(work: Work, file: str | None, schedule: str | None, when: dict[str, str]) -> None:
    """`--schedule` and its companions turn the one task of a command line into a schedule."""
    if schedule is None:
        if when:
            raise typer.BadParameter("it says how a schedule behaves: add --schedule", param_hint=f"--{next(iter(when))}")
        return
    if file is not None or work.task is None or work.inputs is not None:
        raise typer.BadParameter("a file says this itself; it goes with `-- CMD`", param_hint="--schedule")
    task = work.task
    name = task.pop("name", None)
    if name is None:
        raise typer.BadParameter("a schedule needs a name: add --name", param_hint="--schedule")
    work.kept, work.task = [{"name": name, "schedule": schedule, **when, "task": {**task, "name": name}}], None


def bodies(tree: Tree) -> list[dict[str, Any]]:
    """A tree's schedule as the API takes it, and those of subtasks that run more often by themselves too."""
    found = [] if tree.schedule is None else [_body(tree.name, tree.schedule, tree.tasks)]
    if tree.strict and found:
        found[0]["levels"] = "strict"
    for name, spec in tree.parts.items():
        found.append(_body(f"{tree.name}.{name}", spec, _needed(tree, name)))
    return found


def _body(name: str, spec: ScheduleSpec, tasks: list[TreeTask]) -> dict[str, Any]:
    import msgspec

    from headway.cli.work import said

    body: dict[str, Any] = {**msgspec.to_builtins(spec), "name": name}
    if len(tasks) == 1 and tasks[0].name == name:
        body["task"] = said(tasks[0].spec)
    else:
        body["tasks"] = [said(task.spec) for task in tasks]
    return body


def _needed(tree: Tree, name: str) -> list[TreeTask]:
    """A task and everything that it waits for."""
    after, wanted = tree.after, {name}
    queue = [name]
    for at in queue:
        for upstream in after[at]:
            if upstream not in wanted:
                wanted.add(upstream)
                queue.append(upstream)
    return [task for task in tree.tasks if task.name in wanted]


def applied_line(one: AppliedView) -> str:
    from headway.cli.moments import when

    return f"{one.name}: {one.change}" + (f", next {when(one.next_at)}" if one.next_at else "")


@command(schedule, "ls", examples=["headway schedule ls", "headway schedule ls -o quiet"])
def ls(terminal: Terminal) -> None:
    """List schedules with their next firing."""
    from headway.cli.session import talk
    from headway.wire.views.schedules import SchedulePage

    async def ask(server: Server) -> None:
        found = [one for page in await server.pages("/v1/schedules", SchedulePage) for one in page.schedules]
        terminal.answer(found, ids=[one.name for one in found], table=lambda: _list(found))

    talk(terminal, ask)


@command(schedule, "show", examples=["headway schedule show nightly", "headway schedule show nightly --next 20 --past 50"])
def show(
    terminal: Terminal,
    name: Name,
    coming: Annotated[int, typer.Option("--next", help="Firings ahead to show.", min=0, max=1000)] = 5,
    past: Annotated[int, typer.Option("--past", help="Past firings to show.", min=0, max=1000)] = 10,
) -> None:
    """Show a schedule, its next firings and its past ones."""
    from headway.cli.session import talk
    from headway.wire.views.schedules import ScheduleView

    async def ask(server: Server) -> None:
        view = await server.get(_path(name), ScheduleView, next=coming, past=past)
        terminal.answer(view, ids=[view.name], table=lambda: _one(view))

    talk(terminal, ask)


@command(schedule, "pause", examples=["headway schedule pause nightly"])
def pause(terminal: Terminal, name: Name) -> None:
    """Fire no more until it is resumed; runs under way go on."""
    _change(terminal, name, "pause")


@command(schedule, "resume", examples=["headway schedule resume nightly"])
def resume(terminal: Terminal, name: Name) -> None:
    """Go on from now; what fell into the pause does not count as missed."""
    _change(terminal, name, "resume")


@command(
    schedule, "trigger", examples=["headway schedule trigger nightly", "headway wait $(headway schedule trigger nightly -o quiet)"]
)
def trigger(terminal: Terminal, name: Name) -> None:
    """Run it now, whatever its calendar, its policy and a pause say."""
    from headway.cli.session import talk
    from headway.wire.views.schedules import FiringView

    async def ask(server: Server) -> None:
        firing = await server.post(_path(name, "trigger"), FiringView)
        terminal.answer(firing, ids=[firing.run or ""], table=lambda: firing.run or "")

    talk(terminal, ask)


@command(
    schedule,
    "backfill",
    examples=[
        "headway schedule backfill nightly --since 2026-11-01 --until 2026-11-08",
        "headway schedule backfill nightly --since 7d --overlap allow",
    ],
)
def backfill(
    terminal: Terminal,
    name: Name,
    since: Annotated[str, typer.Option("--since", help="From this moment on (ISO 8601), or so long ago.", metavar="TIME")],
    until: Annotated[str, typer.Option("--until", help="Before this moment, now by default.", metavar="TIME")] = "0s",
    overlap: Annotated[str, typer.Option("--overlap", help="queue: one after another; allow: all at once.")] = "queue",
) -> None:
    """Make up for moments that did not run; what ran already does not run again."""
    from headway.cli.moments import moment
    from headway.cli.session import talk
    from headway.wire.views.schedules import Backfilled

    body = {"since": moment(since, "--since"), "until": moment(until, "--until"), "overlap": overlap}

    async def ask(server: Server) -> None:
        made = await server.post(_path(name, "backfill"), Backfilled, body)
        ids = [at.isoformat() for at in made.firings]
        terminal.answer(made, ids=ids, table=lambda: _to_make_up(made.count))

    talk(terminal, ask)


def _to_make_up(count: int) -> str:
    return f"{count} to make up for" if count else "nothing to make up for: all of these moments ran, run or wait already"


@command(schedule, "stop-backfill", examples=["headway schedule stop-backfill nightly"])
def stop_backfill(terminal: Terminal, name: Name) -> None:
    """Give up the moments of a backfill that have not begun; runs under way go on."""
    from headway.cli.session import talk
    from headway.wire.views.schedules import Backfilled

    async def ask(server: Server) -> None:
        left = await server.post(_path(name, "stop-backfill"), Backfilled)
        ids = [at.isoformat() for at in left.firings]
        terminal.answer(left, ids=ids, table=lambda: f"{left.count} given up" if left.count else "no moment of a backfill waits")

    talk(terminal, ask)


@command(schedule, "delete", examples=["headway schedule delete nightly"])
def delete(terminal: Terminal, name: Name) -> None:
    """Delete a schedule and the record of its firings; runs under way go on."""
    from headway.cli.session import talk
    from headway.wire.views.answers import Changed

    async def ask(server: Server) -> None:
        changed = await server.send("DELETE", _path(name), Changed)
        terminal.answer(changed, ids=changed.ids, table=lambda: f"{name}: deleted")

    talk(terminal, ask)


def _change(terminal: Terminal, name: str, verb: str) -> None:
    from headway.cli.session import talk
    from headway.wire.views.schedules import ScheduleView

    async def ask(server: Server) -> None:
        view = await server.post(_path(name, verb), ScheduleView)
        terminal.answer(view, ids=[view.name], table=lambda: f"{view.name}: {view.state}")

    talk(terminal, ask)


def _path(name: str, *rest: str) -> str:
    return "/".join(["/v1/schedules", quote(name, safe=""), *rest])


def _list(found: list[ScheduleView]) -> str:
    from headway.cli.moments import ago

    if not found:
        return "no schedules"
    rows = [(one.name, one.state, _when(one), one.tasks, ago(one.last_at), _ahead(one.next), trouble(one)) for one in found]
    return table(("NAME", "STATE", "SCHEDULE", "TASKS", "LAST", "NEXT", "PROBLEM"), rows, right=("TASKS", "LAST"), wide="PROBLEM")


def trouble(view: ScheduleView) -> str | None:
    """Why it does not run as its calendar says, if so: it cannot, or its last firing came to nothing."""
    if view.problem or view.last_state in (None, "started", "waiting"):
        return view.problem
    return f"last firing {view.last_state}" + (f": {view.last_note}" if view.last_note else "")


def _one(view: ScheduleView) -> str:
    from headway.cli.moments import when

    jitter = None if view.jitter in (0, "0") else view.jitter
    head = fields(
        [
            ("name", view.name),
            ("state", view.state),
            ("schedule", _when(view)),
            ("start", view.start),
            ("end", view.end),
            ("jitter", jitter),
            ("overlap", view.overlap),
            ("misfire", view.misfire),
            ("tasks", view.tasks),
            ("problem", view.problem),
            ("created", when(view.created_at)),
            ("changed", when(view.changed_at)),
            ("next", "\n".join(f"{when(at)}{_there(at, view.timezone)}" for at in view.next) or None),
        ]
    )
    if not view.past:
        return head
    rows = [(_local(one.at), one.kind, one.state, one.run, one.run_state, _note(one)) for one in view.past]
    return f"{head}\n\n{table(('AT', 'KIND', 'FIRING', 'RUN', 'STATE', 'NOTE'), rows, wide='NOTE')}"


def _there(at: datetime.datetime, zone: str) -> str:
    """What the clock of the schedule's own zone shows, where it differs from the clock here."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        local = at.astimezone(ZoneInfo(zone))
    except ZoneInfoNotFoundError:  # the server knows it, this machine does not
        return ""
    return "" if local.utcoffset() == at.astimezone().utcoffset() else f", {local:%a %H:%M} in {zone}"


def _note(one: FiringView) -> str:
    count = f"stands for {one.missed} more" if one.missed else ""
    return "; ".join(part for part in (one.note, count) if part)


def _when(view: ScheduleView) -> str:
    from headway.domain.schedule import ScheduleSpec, describe

    return describe(ScheduleSpec(view.schedule, view.timezone))


def _ahead(moments: list[datetime.datetime]) -> str:
    return _local(moments[0]) if moments else ""


def _local(at: datetime.datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")

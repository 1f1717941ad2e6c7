"""`headway submit` run by a task: its subtasks, each under a key that a second run of the task finds again (C4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from headway.cli.session import Server
    from headway.cli.work import Work
    from headway.client.inside import Inside
    from headway.wire.views.tasks import Accepted, AcceptedMany


async def send(server: Server, inside: Inside, work: Work) -> list[Accepted | AcceptedMany]:
    """Submit the work as subtasks. The tasks of a file's tree become subtasks that wait for each other."""
    from headway.wire.views.tasks import Accepted, AcceptedMany

    answers: list[Accepted | AcceptedMany] = []
    for specs in _requests(work):
        for spec in specs:
            if inside.holds(spec.get("workdir", "")):
                del spec["workdir"]  # it gets one of its own, as every task does
        with inside.claim(msgspec.json.encode(spec) for spec in specs) as keys:
            named = [{"idempotency_key": key, **spec} for key, spec in zip(keys, specs, strict=True)]
            if work.task is not None and work.inputs is None:
                one = await server.post("/v1/tasks", Accepted, named[0])
                answers.append(one)
                ids = [one.id]
            else:
                many = await server.post("/v1/tasks", AcceptedMany, named, timeout=300.0)
                answers.append(many)
                ids = many.ids
        inside.submitted(ids)
    return answers


def _requests(work: Work) -> list[list[dict[str, Any]]]:
    from headway.cli.work import said

    if work.lines is not None:
        return [[msgspec.json.decode(line) for line in work.lines.splitlines() if line.strip()]]
    if work.task is not None and work.inputs is not None:
        return [[{**work.task, "input": each} for each in work.inputs]]
    if work.task is not None:
        return [[dict(work.task)]]
    return [[said(task.spec) for task in tree.tasks] for tree in work.trees]

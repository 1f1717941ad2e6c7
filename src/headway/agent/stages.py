"""Which program a staged task runs now (H8)."""

from __future__ import annotations

import msgspec

from headway.agent.reports import error_text
from headway.domain.task import Definition
from headway.wire.exchange import ErrorInfo, Finished

KEPT = 1000


class StageDefinitions:
    """The definition of each stage: its task's, with the stage's own program. Kept, because spawners know them by identity."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], tuple[Definition, Definition]] = {}

    def of(self, number: int, definition: Definition, stage: int) -> Definition:
        """`number` is the definition's; `stage` counts from 0."""
        known = self._made.get((number, stage))
        if known is not None and known[0] is definition:
            return known[1]
        own = definition.stages[stage]
        made = msgspec.structs.replace(
            definition,
            stages=(),
            command=own.command,
            executable=own.executable,
            args=own.args,
            env={**definition.env, **own.env, "HEADWAY_STAGE": own.name},
            interpreter=own.interpreter,
            workdir=own.workdir or definition.workdir,
        )
        if len(self._made) >= KEPT:
            self._made.clear()
        self._made[(number, stage)] = (definition, made)
        return made


def name_stage(finished: Finished, name: str) -> None:
    """The error of an attempt says in which stage it happened."""
    if finished.error is not None:
        info = msgspec.json.decode(finished.error, type=ErrorInfo)
        info.message = f"stage {name!r}: {info.message}"
        finished.error = error_text(info)

"""Stages: programs of one task that run one after another; a retry begins with the one that failed (H8)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from headway.domain.checks import check_interpreter
from headway.errors import InvalidInput

MOST = 100
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_FETCHED = re.compile(r"upload:|volume:|[a-z]+://")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class StageSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """{name: copy, command: ./copy.sh}, or with `executable`."""

    name: str | None = None
    command: list[str] | str | None = None
    executable: str | None = None
    args: list[str | int | float] = []
    env: dict[str, str] = {}
    interpreter: str | None = None
    workdir: str | None = None


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    command: tuple[str, ...] = ()
    executable: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    interpreter: str = ""
    workdir: str = ""


def stages_of(specs: Sequence[StageSpec | str]) -> tuple[Stage, ...]:
    """The stages behind what a user wrote, or an error that says which one is wrong. A text is a command for the shell."""
    if len(specs) > MOST:
        raise InvalidInput(f"stages: {len(specs)} are too many", field="stages", hint=f"at most {MOST}")
    found = tuple(_stage(number, StageSpec(command=spec) if isinstance(spec, str) else spec) for number, spec in enumerate(specs))
    names = [stage.name for stage in found]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InvalidInput(f"stages: two are named {name!r}", field="stages", hint="a name tells where a retry begins")
    return found


def specs_of(stages: Sequence[Stage]) -> list[StageSpec | str]:
    """The stages of a definition as a user would write them."""
    return [
        StageSpec(
            stage.name, list(stage.command) or None, stage.executable or None, list(stage.args), dict(stage.env),
            stage.interpreter or None, stage.workdir or None,
        )
        for stage in stages
    ]  # fmt: skip


def _stage(number: int, spec: StageSpec) -> Stage:
    field = f"stages[{number}]"

    def fail(what: str, hint: str | None = None) -> InvalidInput:
        return InvalidInput(f"{field}: {what}", field=field, hint=hint)

    command = _command(spec)
    if bool(command) == bool(spec.executable):
        problem = "a stage runs one thing, here are two" if command else "nothing to run"
        raise fail(problem, "give each stage a command or an executable")
    if spec.executable and _FETCHED.match(spec.executable):
        raise fail(f"executable: {spec.executable[:60]!r} would have to be fetched", "give the path of a file on the node")
    if command and not command[0]:
        raise fail("the name of the program is empty")
    check_interpreter(spec.interpreter, field)
    name = spec.name if spec.name is not None else str(number + 1)
    if not _NAME.fullmatch(name):
        raise fail(f"{name[:40]!r} is not a name", "1 to 200 characters, no control characters")
    args = tuple(str(word) for word in spec.args)
    _check_texts(fail, [*command, *args, spec.executable or "", spec.interpreter or "", spec.workdir or "", *spec.env.values()])
    for variable in spec.env:
        if not _ENV_NAME.fullmatch(variable):
            raise fail(f"env: {variable!r} is not a variable name", "letters, digits, underscores")
    return Stage(name, command, spec.executable or "", args, spec.env, spec.interpreter or "", spec.workdir or "")


def _command(spec: StageSpec) -> tuple[str, ...]:
    if isinstance(spec.command, str):
        return ("/bin/sh", "-c", spec.command) if spec.command.strip() else ()
    return tuple(spec.command or ())


def _check_texts(fail: Callable[[str], InvalidInput], texts: list[str]) -> None:
    if any("\x00" in text for text in texts):
        raise fail("a NUL character is not allowed")

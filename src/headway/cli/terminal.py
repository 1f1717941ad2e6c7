"""What every command shares: the options -o, --json, --url, --data-dir, --config, and how answers are printed.

A command is a function whose first argument is the Terminal; `command()` adds the shared options to its own. Tables are
plain text (no boxes, ids never cut), so that they read the same at 80 columns, in a pipe and in a log; only `run` and
`top` need rich.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from headway.config import Settings


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    QUIET = "quiet"


Output = Annotated[Format, typer.Option("--output", "-o", help="For people, for programs, or ids only.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Url = Annotated[str | None, typer.Option("--url", help="The server to talk to (HEADWAY_URL).", metavar="URL")]
DataDir = Annotated[str | None, typer.Option("--data-dir", help="The data folder (HEADWAY_DATA).", metavar="DIR")]
Config = Annotated[str | None, typer.Option("--config", help="A settings file (HEADWAY_CONFIG).", metavar="FILE")]

_SHARED = {
    "output": (Output, Format.TABLE),
    "json": (Json, False),
    "url": (Url, None),
    "data_dir": (DataDir, None),
    "config": (Config, None),
}


@dataclass
class Terminal:
    """How the user wants the answer, and where the server is."""

    format: Format = Format.TABLE
    config: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)  # what stood behind `--`

    def settings(self, **flags: Any) -> Settings:
        """The settings: flags given here and on the command line, then environment, file, defaults."""
        from headway.config import load

        given = {name: value for name, value in {**self.flags, **flags}.items() if value is not None}
        return load(file=self.config, flags=given)

    @property
    def for_people(self) -> bool:
        return self.format is Format.TABLE

    @property
    def quiet(self) -> bool:
        return self.format is Format.QUIET

    @property
    def wants_json(self) -> bool:
        return self.format is Format.JSON

    def json(self, value: Any) -> None:
        """A value as indented JSON, whatever the format."""
        import msgspec

        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        sys.stdout.flush()

    def frame(self, watching: bool) -> None:
        """Begin a new frame of a command that watches: a terminal is cleared, a pipe just gets the next one."""
        if watching and self.for_people and sys.stdout.isatty():
            sys.stdout.write("\x1b[H\x1b[2J")

    async def pause(self, seconds: float) -> None:
        """Between two frames."""
        import asyncio

        await asyncio.sleep(seconds)

    def answer(self, value: Any, *, ids: Sequence[str | int] = (), table: Callable[[], str]) -> None:
        """Print `value` in the format asked for: as JSON, as its ids, or as the table made of it."""
        if self.wants_json:
            self.json(value)
        elif self.quiet:
            for one in ids:
                print(one)
        elif text := table():
            print(text)
        sys.stdout.flush()


def group(summary: str, *, examples: Sequence[str] = ()) -> typer.Typer:
    """A Typer app of ours. Plain help: rich would cost 0.1 s on every --help."""
    app = typer.Typer(help=summary, epilog=_epilog(examples), add_completion=False, rich_markup_mode=None)
    app.callback()(_no_options)  # keeps a group of one command a group
    return app


def _no_options() -> None:
    """Nothing to do before a command."""


def command(
    app: typer.Typer, name: str, *, examples: Sequence[str], task_options: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command: adds the shared options, and examples at the end of its help.

    With `task_options` it also gets the options that describe a task, as one argument `spec`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        described = _task_options() if task_options else {}
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]
            if not (task_options and parameter.name == "spec")
        ]
        added = {**{key: (annotation, None) for key, annotation in described.items()}, **_SHARED}
        parameters = [*own, *(_parameter(key, *entry) for key, entry in added.items())]

        def called(ctx: typer.Context, **given: Any) -> Any:
            output, json, url, data_dir, config = (given.pop(key) for key in _SHARED)
            flags = {"url": url, "data_dir": data_dir}
            terminal = Terminal(Format.JSON if json else output, config, flags, list(ctx.obj or ()))
            if task_options:
                given["spec"] = _task({key: given.pop(key) for key in described})
            return function(terminal, **given)

        context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in (context, *parameters)}
        app.command(name, epilog=_epilog(examples))(called)
        return function

    return register


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _task_options() -> dict[str, Any]:
    from headway.cli.options import TASK_OPTIONS

    return TASK_OPTIONS


def _task(given: dict[str, Any]) -> dict[str, Any]:
    from headway.cli.options import task

    return task(given)


def _epilog(examples: Sequence[str]) -> str:
    # \b tells the help formatter to leave the lines as they are.
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])


def colours(stream: TextIO) -> bool:
    """Whether to colour: a terminal that did not say NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_STATE_COLOURS = {
    "succeeded": 32, "failed": 31, "expired": 31, "cancelled": 33, "skipped": 33, "running": 36, "leased": 36,
    "up": 32, "lost": 31, "draining": 33, "quarantined": 31, "ok": 32, "warn": 33, "fail": 31,
}  # fmt: skip


def paint(word: str, text: str | None = None, *, stream: TextIO | None = None) -> str:
    """`text` (or the word itself) in the colour of a state, when there are colours."""
    code = _STATE_COLOURS.get(word)
    text = word if text is None else text
    return f"\x1b[{code}m{text}\x1b[0m" if code and colours(stream or sys.stdout) else text


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (), wide: str = "") -> str:
    """Aligned columns. Only the column called `wide` is shortened, and only on a terminal too narrow for it."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max([len(title), *(len(row[at]) for row in cells)]) for at, title in enumerate(header)]
    if wide and sys.stdout.isatty():
        at = list(header).index(wide)
        spare = _columns() - sum(widths) - 2 * (len(header) - 1) + widths[at]
        widths[at] = min(widths[at], max(spare, len(wide), 12))
    lines = [_line(header, header, widths, right)]
    lines += [_line(row, header, widths, right, coloured=True) for row in cells]
    return "\n".join(lines)


def _line(row: Sequence[str], header: Sequence[str], widths: Sequence[int], right: Sequence[str], *, coloured: bool = False) -> str:
    parts = []
    for cell, title, width in zip(row, header, widths, strict=True):
        text = cell if len(cell) <= width else cell[: width - 1] + "…"
        text = text.rjust(width) if title in right else text.ljust(width)
        parts.append(paint(cell, text) if coloured and title == "STATE" else text)
    return "  ".join(parts).rstrip()


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def fields(pairs: Sequence[tuple[str, Any]]) -> str:
    """Names and values below each other; values that are None are left out, lines of a value are aligned."""
    given = [(name, str(value)) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in given), default=0)
    lines = []
    for name, value in given:
        first, *rest = value.splitlines() or [""]
        lines.append(f"{name:<{width}}  {first}")
        lines += [f"{'':<{width}}  {line}" for line in rest]
    return "\n".join(lines)

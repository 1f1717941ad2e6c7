"""The `headway` command itself: exit codes, help, mistakes in the command line, and what it imports."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
import typer.main

from headway import errors
from headway.cli.main import COMMANDS, EXIT_CODES, Exit, main

HEAVY = ("asyncpg", "litestar", "uvicorn", "uvloop", "rich", "ruamel", "structlog", "prometheus_client", "pydantic")


def headway(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "headway.cli.main", *words], capture_output=True, text=True)


def every_error() -> set[str]:
    kinds = [errors.HeadwayError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {kind.code for kind in kinds if kind.__module__ == errors.__name__}


def every_help() -> list[list[str]]:
    """The words that ask each command, and each command of a group, for its help."""
    found = []
    for name, entry in COMMANDS.items():
        module, _, attribute = entry.where.partition(":")
        app = getattr(importlib.import_module(f"headway.cli.{module}"), attribute)
        inner = typer.main.get_command(app).commands  # type: ignore[attr-defined]
        found += [[name]] if name in inner else [[name], *([name, sub] for sub in inner)]
    return found


def test_every_error_has_an_exit_code_and_nothing_else_has_one() -> None:
    assert set(EXIT_CODES) == every_error()


def test_the_exit_codes_of_the_interface_are_these() -> None:
    named = {code: EXIT_CODES[code] for code in ("invalid_input", "unavailable", "limit_exceeded", "forbidden")}
    assert named == {"invalid_input": 65, "unavailable": 69, "limit_exceeded": 75, "forbidden": 77}
    assert (Exit.USAGE, Exit.TIMED_OUT) == (64, 124)


@pytest.mark.parametrize("words", every_help(), ids=" ".join)
def test_help_ends_in_examples_that_name_the_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    examples = lines[lines.index("  Examples:") + 1 :]
    assert examples
    assert all(line.startswith("    ") for line in examples)
    assert any(f"headway {' '.join(words)}" in line for line in examples)


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.where.endswith(":app")])
def test_the_overview_says_of_a_command_what_its_own_help_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([name, "--help"])
    summary = COMMANDS[name].summary.rstrip(".")
    if name not in ("dead", "db"):  # groups list their commands instead
        assert summary in " ".join(capsys.readouterr().out.split())


def test_the_overview_names_every_command_and_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "Examples:" in text


def test_an_unknown_command_is_a_usage_error_that_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sumbit"]) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert "there is no command 'sumbit'" in said.err
    assert "did you mean `headway submit`?" in said.err


def test_an_option_before_the_command_is_told_where_options_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "ls"]) == 64
    assert "options come after it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ls", "--stat", "failed"], "--state"),
        (["node", "lss"], "'ls'"),
        (["ls", "--since", "yesterday"], '"1h30m"'),
        (["submit", "--label", "web", "--", "true"], "KEY=VALUE"),
        (["ls", "--trees", "--state", "failed"], "--name only"),
        (["submit"], "nothing to run"),
        (["dead", "retry"], "--fingerprint"),
        (["dead", "purge", "--all"], "--yes"),
        (["show"], "missing argument"),
    ],
)
def test_a_wrong_command_line_is_told_on_stderr_with_what_was_expected(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert expected in said.err
    assert f"where: headway {words[0]}" in said.err


def test_the_version_is_printed() -> None:
    said = headway("--version")
    assert (said.returncode, said.stdout) == (0, "headway 0.1.0\n")


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        (["--help"], [*HEAVY, "typer", "msgspec", "asyncio"]),
        (["ls", "--help"], [*HEAVY, "msgspec", "asyncio"]),
        (["ls", "--url", "http://127.0.0.1:9"], [*HEAVY, "headway.treefile", "headway.api", "headway.store"]),
        (["submit", "--url", "http://127.0.0.1:9", "--", "true"], HEAVY),
    ],
)
def test_a_command_does_not_load_what_it_does_not_need(words: list[str], left_out: list[str]) -> None:
    program = (
        "import sys\n"
        "from headway.cli.main import main\n"
        f"main({words!r})\n"
        f"print('loaded:', [name for name in {list(left_out)!r} if name in sys.modules])\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == "loaded: []", said.stderr


@pytest.mark.parametrize("words", [["schema"], ["ls", "--help"]])
def test_a_reader_that_goes_away_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    said = subprocess.run([sys.executable, "-m", "headway.cli.main", *words], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (said.returncode, said.stderr) == (0, "")


def test_a_signal_behind_the_task_is_told_its_place() -> None:
    said = headway("signal", "1234567890123456789", "USR1")
    assert said.returncode == 65
    assert "headway signal USR1 1234567890123456789" in said.stderr

"""`domain` and `policy` do no I/O, read no clock and throw no dice, so that a simulator can run the same functions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headway"
PURE = sorted(path for package in ("domain", "policy") for path in (SOURCE / package).rglob("*.py"))

# Modules that reach outside the program.
FORBIDDEN_MODULES = {
    "aiohttp", "asyncio", "asyncpg", "concurrent", "ctypes", "fcntl", "glob", "http", "httpx", "httpx2", "importlib",
    "io", "litestar", "logging", "mmap", "multiprocessing", "os", "pathlib", "platform", "psutil", "queue", "random",
    "resource", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "structlog", "subprocess",
    "sys", "tempfile", "threading", "time", "urllib", "uuid", "uvloop",
}  # fmt: skip
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
CLOCK_METHODS = {"now", "utcnow", "today"}  # of datetime and date
HEADWAY_ALLOWED = {"headway.domain", "headway.policy", "headway.errors"}


def offences(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names if not _pure_module(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            if node.level or not _pure_module(node.module or ""):
                found.append((node, node.module or "a relative import"))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                found.append((node, f"{node.func.id}()"))
            elif isinstance(node.func, ast.Attribute) and node.func.attr in CLOCK_METHODS:
                found.append((node, f".{node.func.attr}()"))
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global):
            found.append((node, type(node).__name__))
    return [f"line {node.lineno}: {what}" for node, what in found]


def _pure_module(name: str) -> bool:
    if name.split(".")[0] == "headway":
        return any(name == allowed or name.startswith(allowed + ".") for allowed in HEADWAY_ALLOWED)
    return name.split(".")[0] not in FORBIDDEN_MODULES


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_pure_core_does_no_io_and_reads_no_clock(path: Path) -> None:
    assert offences(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import os.path",
        "from random import random",
        "from headway.store import migrate",
        "from . import task",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import date\ndate.today()",
        "def f():\n    import socket",
        "open('x')",
        "async def f(): ...",
        "def f():\n    global x",
    ],
)
def test_the_check_itself_finds_what_it_looks_for(text: str) -> None:
    assert offences(ast.parse(text))


def test_values_and_arithmetic_are_pure() -> None:
    text = "import datetime, math\nfrom headway.domain.spec import TaskSpec\ndef f(now: float) -> float: return now + 1"
    assert offences(ast.parse(text)) == []
    assert PURE

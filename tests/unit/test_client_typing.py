"""What mypy sees of tasks and handles: the types of the functions, unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import datetime
from headway import AsyncClient, Client, Executor, task

@task
def add(a: int, b: int = 1) -> int: return a + b

@task(attempts=3)
async def later(day: datetime.date) -> str: return ""

reveal_type(add(1))
reveal_type(add.submit(1, b=2).result())
reveal_type(later.submit(datetime.date.today()).result(timeout=3))
reveal_type([h.result() for h in add.options(attempts=2).map([1])])
reveal_type(Client().get(1).state)
reveal_type(Executor().submit(add, 1))
add.submit("x")
add.submit(1, c=2)
Client().get(1, wait="x")

async def main() -> None:
    reveal_type(await (await add.aio(1)))
"""


def test_mypy_knows_results_and_refuses_wrong_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    revealed = [line.split('"')[1] for line in said.splitlines() if "Revealed type" in line]
    assert revealed == ["int", "int", "str", "list[int]", "str", "concurrent.futures._base.Future[int]", "int"], said
    assert [line.rpartition("[")[2] for line in said.splitlines() if "error:" in line] == ["arg-type]", "call-arg]", "arg-type]"], (
        said
    )

"""The compiled part of the agent when the package is built: made where it can be, left out in words where it cannot (hatch_build.py)."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from hatch_build import compiled
from headway.agent.starter import LIBRARY, VERSION
from tests.support.packages import need

SOURCE = Path(LIBRARY).with_name("starter.c")


def test_it_is_put_in_the_place_of_an_older_one_which_goes_on_for_who_has_it(tmp_path: Path) -> None:
    need("gcc")
    made = tmp_path / "made.so"
    made.write_text("an older one")
    with made.open() as older:
        assert compiled(str(SOURCE), str(made)) == ""
        assert older.read() == "an older one"
    assert ctypes.CDLL(str(made)).version() in (VERSION, 0)
    assert list(tmp_path.iterdir()) == [made]


def test_without_a_compiler_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler was found" in compiled(str(SOURCE), str(tmp_path / "made.so"))


def test_a_compiler_that_cannot_run_or_cannot_compile_it_leaves_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    monkeypatch.setenv("CC", str(compiler))
    failing = "#!/bin/sh\necho no such header >&2\nexit 1\n"
    for text, words in (("\x7fELF of another machine", "Exec format error"), (failing, "no such header")):
        compiler.write_text(text)
        compiler.chmod(0o755)
        assert words in compiled(str(SOURCE), str(tmp_path / "made.so"))
    assert list(tmp_path.iterdir()) == [compiler]


def test_a_source_tree_that_cannot_be_written_to_leaves_it_out(tmp_path: Path) -> None:
    need("gcc")
    assert "No such file or directory" in compiled(str(SOURCE), str(tmp_path / "missing" / "made.so"))

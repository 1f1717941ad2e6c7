"""A machine is known again, and a copy of its folder is not taken for it (F2)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.agent import machine_id
from headway.agent.machine_id import machine_of


def test_the_same_folder_is_the_same_machine(tmp_path: Path) -> None:
    assert machine_of(str(tmp_path)) == machine_of(str(tmp_path))


def test_a_copy_of_the_folder_is_another_machine(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    known = machine_of(str(first))
    shutil.copytree(first, tmp_path / "copy")
    assert machine_of(str(tmp_path / "copy")) != known
    assert machine_of(str(first)) == known


def test_the_same_disk_under_another_kernel_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = machine_of(str(tmp_path))
    elsewhere = tmp_path / "boot_id"
    elsewhere.write_text("another boot")
    monkeypatch.setattr(machine_id, "_BOOT", str(elsewhere))
    assert machine_of(str(tmp_path)) != known

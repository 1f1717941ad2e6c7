"""Groups of version 2, on a folder that looks like one: what the kernel does is seen in tests/e2e/test_unified_groups.py (G3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.agent.cgroups_v2 import V2Group
from headway.agent.group import Limits
from tests.unit.test_agent_spawn import left


@pytest.fixture
def used_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> V2Group:
    """One whose peak cannot begin again, as in kernels before 6.12, and which a task has used."""
    group = V2Group(str(tmp_path / "slot"), ["pids"])
    (tmp_path / "slot" / "pids.max").touch()
    group.limit(Limits(processes=10), "")
    monkeypatch.setattr(group, "_begin_peak", lambda: False)
    monkeypatch.setattr(group, "_read_peak", lambda: 2**20)
    return group


def test_a_group_in_which_somebody_is_left_is_used_as_it_is(used_group: V2Group) -> None:
    assert used_group.begin() is False  # a folder with a file in it cannot be removed either


def test_a_group_that_was_made_anew_and_could_not_be_limited_is_not_used(used_group: V2Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, and its task ran without limits."""
    monkeypatch.setattr(os, "rmdir", lambda path: (os.unlink(f"{path}/pids.max"), os.renames(path, f"{path}-gone")))
    with pytest.raises(FileNotFoundError):
        used_group.begin()


def test_a_group_that_cannot_be_looked_at_is_not_called_empty(tmp_path: Path) -> None:
    """It was, and the next task would have been with what is left of the one before."""
    group = V2Group(str(tmp_path / "slot"), ("pids",))
    (tmp_path / "slot" / "pids.current").write_text("1\n")
    with left(0), pytest.raises(OSError, match="Too many open files"):
        _ = group.empty()
    assert not group.empty()
    (tmp_path / "slot" / "pids.current").unlink()  # a group without this controller, or one that is gone
    assert group.empty()

"""Groups of version 2, on a folder that looks like one: what the kernel does is seen in tests/e2e/test_unified_groups.py (G3)."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headway.agent.cgroups_v2 import V2Group
from headway.agent.granted import Granted
from headway.agent.group import Limits, Used
from headway.agent.meter import excess_of
from headway.agent.places import Place, Places
from headway.agent.runner_box import RunnerBoxes
from headway.agent.scratch import Scratch
from headway.agent.slots import Slot, Slots
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


COUNTERS = {
    "pids.current": "0\n", "cgroup.procs": "", "memory.current": "0\n", "memory.peak": "4096\n", "cpu.stat": "usage_usec 5000000\n",
    "memory.events": "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n", "pids.events": "max 3\n",
}  # fmt: skip


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    """One whose last task was killed for its memory and could not start some processes."""
    group = V2Group(str(tmp_path / "slot"), ("memory", "pids"))
    for name, text in COUNTERS.items():
        (tmp_path / "slot" / name).write_text(text)
    return Slot(1, group, None)


@pytest.fixture
def slots(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> Slots:
    """They have that one to give."""
    monkeypatch.setattr("headway.agent.cgroups_v2.V2Group._begin_peak", lambda group: False)
    made = Slots(None, users=None, device="")
    monkeypatch.setattr(made, "hierarchy", SimpleNamespace())
    made.give_back(slot)
    return made


def test_counters_that_cannot_be_read_are_not_taken_for_nothing(slot: Slot) -> None:
    with left(0), pytest.raises(OSError, match="Too many open files"):
        slot.group.used()  # type: ignore[union-attr]
    assert slot.used() == Used(4096, 5000, 1, 3)


def test_a_task_is_not_told_of_the_kills_of_the_one_before_it(slots: Slots, slot: Slot) -> None:
    """Where the counters could not be read at its beginning, what they had counted before was its own."""
    with left(0), pytest.raises(OSError, match="Too many open files"):
        slots.take(Limits(), isolated=False)
    assert slots._spoilt == [slot]


def test_counters_that_went_back_tell_of_no_limit(slot: Slot) -> None:
    slot.before = Used(None, 0, 2, 4)
    assert excess_of(slot.used(), Place("", cast(Scratch, None), slot, Limits(), 0)) is None


def test_a_runner_whose_counters_cannot_be_read_has_ended_for_no_limit(slot: Slot) -> None:
    left_places: list[Place] = []
    boxes = RunnerBoxes(cast(Places, SimpleNamespace(give_back=left_places.append)), cast(Granted, None))
    place = Place("", cast(Scratch, None), slot, Limits(), 0)
    with left(0):
        assert boxes.leave(place) is None
    assert left_places == [place]
    excess = boxes.leave(place)
    assert excess is not None
    assert excess.what == "memory"

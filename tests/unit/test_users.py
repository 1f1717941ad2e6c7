"""Users of isolated tasks: nobody shares one (H11)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.agent.group import Group, Limits
from headway.agent.slots import Slots
from headway.agent.users import SPAN, Users

FIRST = 200_000


def test_no_two_have_the_same_and_when_none_is_left_that_is_said(tmp_path: Path) -> None:
    users = Users(FIRST, "0", str(tmp_path))
    taken = [users.take() for _ in range(SPAN - 1)]
    assert len(set(taken)) == SPAN - 1
    assert FIRST < min(taken) <= max(taken) < FIRST + SPAN
    with pytest.raises(OSError, match="all 1023 users of isolated tasks on this node are in use"):
        users.take()
    users.give_back(taken[5])
    assert users.take() == taken[5]


def test_two_agents_of_a_machine_have_users_of_their_own_though_they_begin_at_the_same(tmp_path: Path) -> None:
    one, other = Users(FIRST, "40", str(tmp_path)), Users(FIRST, "80", str(tmp_path))  # the same modulo 64
    assert abs(one.take() - other.take()) >= SPAN
    one.close()
    third = Users(FIRST, "0", str(tmp_path))
    assert third.first == one.first, "what an agent had is free when it has ended"


def test_where_nothing_can_be_locked_the_instance_decides(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Users(FIRST, "3", str(tmp_path / "file")).first == FIRST + 3 * SPAN


@pytest.mark.parametrize("missing", ["user", "group"])
def test_a_slot_for_which_there_is_no_user_or_no_group_leaves_nothing_taken(tmp_path: Path, missing: str) -> None:
    users, made = Users(FIRST, "0", str(tmp_path)), list[str]()
    if missing == "user":
        users._free.clear()

    def group(name: str) -> Group:
        made.append(name)
        raise OSError("no space left")

    slots = Slots(None, users=users, device="")
    hierarchy: Any = SimpleNamespace(group=group, go_home=lambda thread: None, clear=lambda: None)
    slots.hierarchy = hierarchy
    free = list(users._free)
    for _ in range(3):
        with pytest.raises(OSError, match="are in use" if missing == "user" else "no space left"):
            slots.take(Limits(), isolated=True)
    assert made == ([] if missing == "user" else ["1", "1", "1"])
    assert users._free == free
    slots.close()

"""Users of isolated tasks: nobody shares one (H11)."""

from __future__ import annotations

from pathlib import Path

import pytest

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

"""Where the machine has no more threads for the supervisor: a task is not started, and nothing else is lost (H7)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.agent.group import Limits
from headway.agent.link import Terms
from headway.agent.places import Places
from headway.agent.slots import can_change_user
from tests.support.confined import need_groups

INSTANCE = os.urandom(8).hex()


def none_left(*_: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    need_groups()
    made = Places(str(tmp_path), INSTANCE, Terms(), 10)
    yield made
    made.close()


@pytest.mark.parametrize("isolated", [False, True])
def test_a_slot_without_a_thread_leaves_nothing_taken(places: Places, monkeypatch: pytest.MonkeyPatch, isolated: bool) -> None:
    if isolated and not can_change_user():
        pytest.skip("isolated tasks have no users of their own here")
    stack = threading.stack_size()
    free = len(places.slots.users._free) if places.slots.users is not None else 0
    with monkeypatch.context() as patched:
        patched.setattr(threading, "_start_new_thread", none_left)
        for _ in range(3):
            with pytest.raises(OSError, match="can't start new thread") as raised:
                places.slots.take(Limits(), isolated=isolated)
            assert raised.value.errno == errno.EAGAIN
    assert threading.stack_size() == stack
    assert places.slots.users is None or len(places.slots.users._free) == free
    slot = places.slots.take(Limits(), isolated=isolated)
    assert slot is not None
    assert slot.number == 1

"""A head knows the front of its group without ever reading it twice, and never loses a task (E1)."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from headway.policy import order
from headway.policy.order import Head, Key

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def key(start: int, task: int) -> Key:
    return (BASE + datetime.timedelta(seconds=start), 1, task)


class Table:
    """What the database would answer: ready tasks of one group."""

    def __init__(self) -> None:
        self.ready: set[Key] = set()

    def after(self, cursor: Key, limit: int) -> list[Key]:
        return sorted(k for k in self.ready if k > cursor)[:limit]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 30), min_size=1, max_size=5)),
        st.tuples(st.just("refill"), st.integers(1, 6)),
        st.tuples(st.just("take"), st.integers(1, 6)),
    ),
    max_size=40,
)


@given(steps)
def test_every_ready_task_is_handed_out_once_and_none_before_a_known_earlier_one(script):
    table, head, task = Table(), Head(), 0
    for step, argument in script:
        if step == "add":
            new = []
            for start in argument:
                task += 1
                new.append(key(start, task))
            table.ready.update(new)
            head.add(sorted(new))
        elif step == "refill" and head.more:
            head.refill(table.after(head.cursor, argument), asked=argument)
        elif step == "take":
            for k in head.take(argument):
                assert k in table.ready, "handed out twice, or made up"
                table.ready.remove(k)
    while len(head) or head.more:
        if not len(head):
            head.refill(table.after(head.cursor, 3), asked=3)
        for k in head.take(100):
            table.ready.remove(k)
    assert not table.ready


def test_new_tasks_behind_a_complete_head_need_no_reading():
    head = Head()
    head.refill([key(1, 1)], asked=10)
    head.add([key(2, 2), key(3, 3)])
    assert not head.more
    assert [k[2] for k in head.take(10)] == [1, 2, 3]


def test_a_task_that_became_ready_while_the_database_was_read_is_not_lost():
    head = Head()
    news = head.news
    head.add([key(5, 1)])  # committed after the read began
    head.refill([], asked=10, news=news)
    assert head.more


def test_an_earlier_start_by_lowers_the_cursor():
    head = Head()
    head.refill([key(5, 1), key(9, 2)], asked=10)
    head.add([key(7, 3)])
    assert head.more
    assert head.cursor < key(7, 3)
    assert [k[2] for k in head.take(10)] == [1]


def test_memory_is_bounded_however_many_become_ready(monkeypatch):
    monkeypatch.setattr(order, "HEAD_LIMIT", 10)
    head = Head(more=False)
    for i in range(100):
        head.add([key(i, i)])
    assert len(head) <= 10
    assert head.more


def test_memory_of_all_groups_is_bounded_however_many_there_are():
    for groups in (1, 75, 300, 10_000, 1_000_000):
        head = Head(more=False)
        limit = order.head_limit(groups)
        for at in range(0, 3 * order.HEAD_LIMIT, 8):
            head.add([key(n, n) for n in range(at, at + 8)], groups)
        assert order.LEAST_HEAD <= len(head) <= limit
        assert groups * limit <= max(order.ALL_HEADS, groups * order.LEAST_HEAD)
        assert head.more, "what was not kept is read later"

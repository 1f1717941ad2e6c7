"""A large task among small ones gets its node, and nothing is kept where nobody needs it (E1 E5)."""

from __future__ import annotations

import datetime
import heapq
import random

from hypothesis import given
from hypothesis import strategies as st

from headway.domain.resources import Capacity, Resources
from headway.policy.forecast import Held, Lasting
from headway.policy.order import Head
from headway.policy.placement import Board, NodeRoom, Round, need_of
from headway.policy.reservation import Reservation, soonest
from headway.policy.room import refuse

BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SMALL, WHOLE, BRIEF = 1, 2, 3  # shapes
SHAPES = {SMALL: Resources(cpus_milli=500), WHOLE: Resources(cpus_milli=4000), BRIEF: Resources(cpus_milli=1000, memory=1)}


def at(seconds: float) -> datetime.datetime:
    return BASE + datetime.timedelta(seconds=seconds)


def board(nodes: int) -> Board:
    made = Board(SHAPES)
    for number in range(1, nodes + 1):
        made.add_node(NodeRoom(number, f"n{number}", Capacity(4000, 100, 100)))
    made.resize()
    return made


def wait(made: Board, tenant: int, shape: int, task: int, start_by: float = 0.0, cap_s: float = 600.0) -> None:
    head = made.heads.setdefault((tenant, shape), Head(more=False))
    head.keys.append((at(start_by), int(cap_s * 1000), task))
    made.touched((tenant, shape))


class Stream:
    """Small tasks of up to six seconds that keep every node full, and a planner that looks four times a second."""

    def __init__(self, nodes: int, luck: random.Random) -> None:
        self.board, self.luck, self.now, self.task = board(nodes), luck, 0.0, 0
        self.ends: list[tuple[float, int, tuple[int, int], int]] = []
        self.began: dict[int, float] = {}

    def step(self, *, reserving: bool) -> None:
        self.now += 0.25
        while self.ends and self.ends[0][0] <= self.now:
            _, node, group, _ = heapq.heappop(self.ends)
            self.board.hold(node, group, -1)
        while len(self.board.heads.get((1, SMALL), ())) < 16:
            self.task += 1
            wait(self.board, 1, SMALL, self.task, self.now, cap_s=60)
        keeping = self.board.keeping
        if reserving:
            for group, task in keeping.starved():
                held = [Held(node, one[0], need_of(SHAPES[one[1]]), 0.0, Lasting((end - self.now,))) for end, node, one, _ in self.ends]
                before = next((kept.node for kept in keeping.nodes.values() if kept.group == group), None)
                if found := soonest(need_of(SHAPES[group[1]]), self.board.rooms.values(), held, before):
                    keeping.keep(Reservation(found[0], group, task, at(self.now + found[1])))
        windows = {node: kept.left_s(at(self.now)) for node, kept in keeping.nodes.items()}
        for placed in self.board.place(Round(100, at(self.now + 2), windows=windows)):
            for key in placed.keys:
                self.began[key[2]] = self.now
                heapq.heappush(self.ends, (self.now + self.luck.uniform(0.5, 6.0), placed.node, placed.group, key[2]))
        assert all(free >= 0 for room in self.board.rooms.values() for free in room.free), "no plan exceeds a node"


def begins(nodes: int, seed: int, *, reserving: bool) -> float | None:
    stream = Stream(nodes, random.Random(seed))
    for _ in range(20):
        stream.step(reserving=reserving)
    wait(stream.board, 2, WHOLE, 10**6, stream.now)
    since = stream.now
    for _ in range(120):
        stream.step(reserving=reserving)
        if 10**6 in stream.began:
            stream.step(reserving=reserving)
            assert not stream.board.keeping.busy, "what was kept is given back"
            return stream.began[10**6] - since
    return None


@given(st.integers(1, 6), st.integers())
def test_a_task_that_needs_a_whole_node_begins_within_about_two_turns_of_the_small_ones(nodes, seed):
    wait_s = begins(nodes, seed, reserving=True)
    assert wait_s is not None
    assert wait_s <= 14.0


def test_without_a_kept_node_it_never_would():
    assert begins(3, 1, reserving=False) is None


def test_nothing_is_kept_while_tasks_are_as_large_as_what_ends():
    stream = Stream(3, random.Random(1))
    for _ in range(100):
        stream.step(reserving=True)
        assert not stream.board.keeping.busy


def kept_board() -> Board:
    made = board(1)
    made.hold(1, (1, SMALL), 2)
    wait(made, 2, WHOLE, 7)
    made.keeping.keep(Reservation(1, (2, WHOLE), 7, at(100)))
    return made


def test_on_a_kept_node_only_what_ends_in_time_begins():
    made = kept_board()
    wait(made, 1, SMALL, 1, cap_s=101)
    wait(made, 3, BRIEF, 2, cap_s=99)
    plan = made.place(Round(100, at(1), windows={1: 100.0}))
    assert [key[2] for placed in plan for key in placed.keys] == [2]


def test_a_kept_node_is_given_back_when_the_task_goes_and_when_the_node_does():
    made = kept_board()
    made.heads[(2, WHOLE)].rescan()
    made.touched((2, WHOLE))
    made.place(Round(100, at(1)))
    assert not made.keeping.nodes
    assert made.rooms[1].kept is None
    made = kept_board()
    made.remove_node(1)
    made.place(Round(100, at(1)))
    assert not made.keeping.nodes


def test_others_are_told_for_whom_the_node_is_kept():
    made = kept_board()
    refusal = refuse(SHAPES[SMALL], made.rooms[1])
    assert refusal is not None
    assert refusal.reason == "is being kept free for task 7"
    large = refuse(SHAPES[WHOLE], made.rooms[1])
    assert large is not None
    assert "is full" in large.reason


def test_the_node_that_has_room_soonest_is_kept_and_changed_only_for_one_far_sooner():
    made = board(2)
    need = need_of(SHAPES[WHOLE])
    made.hold(1, (1, SMALL), 1)
    made.hold(2, (1, SMALL), 1)
    held = [Held(1, 1, need_of(SHAPES[SMALL]), 0.0, Lasting((50.0,))), Held(2, 1, need_of(SHAPES[SMALL]), 0.0, Lasting((40.0,)))]
    assert soonest(need, made.rooms.values(), held) == (2, 40.0)
    assert soonest(need, made.rooms.values(), held, kept=1) == (1, 50.0)
    held[1] = Held(2, 1, need_of(SHAPES[SMALL]), 0.0, Lasting((10.0,)))
    assert soonest(need, made.rooms.values(), held, kept=1) == (2, 10.0)

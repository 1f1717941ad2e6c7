"""The rate limiter (A3): however many servers spend, whatever is lost or late, no window sees more than rate x time + burst."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headway.policy.holding import BRIEF, LONG, SMALL, holding, noted, wish
from headway.policy.quota import room
from headway.policy.rate_limit import Bucket, Held, Limit, filled, give_back, lease, still_owed

LASTS = 10.0


@dataclass
class Server:
    """A server as control/allowances.py is one: it spends what it holds without asking, and asks when it must."""

    name: str
    tokens: float = 0.0
    until: float = 0.0
    owed: float = 0.0
    owed_at: float = 0.0


@dataclass
class World:
    limit: Limit
    bucket: Bucket
    servers: list[Server]
    now: float = 0.0
    spent: list[tuple[float, int]] = field(default_factory=list)

    def submit(self, server: Server, count: int, wishes: float) -> None:
        if self.take(server, count, wishes):
            self.spent.append((self.now, count))

    def repeat(self, server: Server, count: int, takes: float) -> None:
        """Tokens are taken, and some time later it turns out that the tasks were there already."""
        if self.take(server, count, wishes=count):
            began = self.now
            self.now += takes
            server.owed = self.owes(server) + still_owed(count, self.limit, self.now - began)
            server.owed_at = self.now

    def owes(self, server: Server) -> float:
        return still_owed(server.owed, self.limit, self.now - server.owed_at)

    def take(self, server: Server, count: int, wishes: float) -> bool:
        if self.now >= server.until:
            server.tokens = 0.0
        if server.tokens < count:
            answer = lease(
                self.bucket,
                self.limit,
                server=server.name,
                keeps=server.tokens,
                needs=count,
                wishes=wishes,
                now=self.now,
                lasts=LONG.lasts_s,
                owed=self.owes(server),
            )
            server.tokens, server.owed = answer.holds, 0.0
            term = holding(self.limit, None, tokens=answer.holds, slots=0)
            self.bucket = noted(answer.bucket, server=server.name, tokens=answer.holds, slots=0, lasts_s=term.lasts_s)
            if answer.wait > 0:
                server.until = min(server.until, self.now + term.spent_s)
                return False
            server.until = self.now + term.spent_s
        else:
            server.tokens -= count
        return True

    def leave_some(self, server: Server) -> None:
        if self.now < server.until:
            owed, server.owed = self.owes(server), 0.0
            self.bucket = give_back(
                self.bucket, self.limit, server=server.name, keeps=server.tokens, now=self.now, lasts=LONG.lasts_s, owed=owed
            )
        server.tokens, server.until = 0.0, 0.0

    def die(self, server: Server) -> None:
        server.name += "'"  # another boot, which holds nothing
        server.tokens, server.until, server.owed = 0.0, 0.0, 0.0

    def worst_excess(self) -> float:
        """The most that any window spent above rate x its length + burst."""
        worst = 0.0
        for first, (start, _) in enumerate(self.spent):
            total = 0
            for moment, count in self.spent[first:]:
                total += count
                worst = max(worst, total - self.limit.burst - self.limit.per_s * (moment - start))
        return worst


steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "submit", "submit", "repeat", "wait", "give back", "die"]),
        st.integers(0, 3),
        st.integers(1, 8),
        st.one_of(st.floats(0, 12), st.floats(0, 150)),
    ),
    max_size=60,
)


@given(st.floats(0.01, 50), st.one_of(st.integers(1, 40), st.integers(41, 2_000)), st.floats(0, 1), steps)
def test_no_window_sees_more_than_rate_times_time_plus_burst(per_s, burst, begins, todo):
    limit = Limit(per_s, burst)
    world = World(limit, Bucket(burst * begins, 0.0), [Server(f"s{i}") for i in range(4)])
    for what, which, count, amount in todo:
        server = world.servers[which]
        if what == "submit":
            world.submit(server, count, wishes=amount)
        elif what == "repeat":
            world.repeat(server, count, takes=amount / 100)
        elif what == "wait":
            world.now += amount
        elif what == "give back":
            world.leave_some(server)
        else:
            world.die(server)
        held = sum(h.tokens for h in world.bucket.held.values())
        assert world.bucket.tokens >= -1e-6
        assert world.bucket.tokens + held <= burst + 1e-6
    assert world.worst_excess() <= 1e-6


@given(st.floats(0.1, 50), st.integers(1, 40), st.integers(1, 40))
def test_who_waits_as_long_as_told_is_served(per_s, burst, count):
    limit, count = Limit(per_s, burst), min(count, burst)
    first = lease(Bucket(0.0, 0.0), limit, server="a", keeps=0, needs=count, wishes=0, now=0.0, lasts=LASTS)
    assert first.wait > 0
    again = lease(first.bucket, limit, server="a", keeps=0, needs=count, wishes=0, now=first.wait + 1e-6, lasts=LASTS)
    assert again.wait == 0


def test_what_was_taken_for_nothing_goes_back_and_never_fills_the_bucket_above_the_burst():
    limit = Limit(1.0, 10)
    taken = lease(Bucket(10.0, 0.0), limit, server="a", keeps=0, needs=4, wishes=0, now=0.0, lasts=LASTS)
    again = lease(taken.bucket, limit, server="a", keeps=0, needs=1, wishes=0, now=0.0, lasts=LASTS, owed=4)
    assert again.bucket.tokens == 9.0
    late = lease(taken.bucket, limit, server="a", keeps=0, needs=1, wishes=0, now=9.0, lasts=LASTS, owed=still_owed(4, limit, 9.0))
    assert late.bucket.tokens == 9.0


def test_need_is_all_or_nothing_and_a_refusal_takes_nothing():
    answer = lease(Bucket(3.0, 0.0), Limit(1.0, 10), server="a", keeps=0, needs=5, wishes=8, now=0.0, lasts=LASTS)
    assert (answer.holds, answer.wait, answer.bucket.tokens) == (0.0, 2.0, 3.0)


def test_a_wish_is_granted_only_as_far_as_there_is():
    answer = lease(Bucket(3.0, 0.0), Limit(1.0, 10), server="a", keeps=0, needs=1, wishes=8, now=0.0, lasts=LASTS)
    assert (answer.holds, answer.wait, answer.bucket.tokens) == (2.0, 0.0, 0.0)


def test_a_dead_server_s_tokens_are_lost_not_made_anew():
    dead = Bucket(0.0, 0.0, {"dead": Held(until=5.0, tokens=10)})
    assert filled(dead, Limit(1.0, 10), now=4.0, lasts=LASTS).tokens == 0.0, "while it counted, the bucket was full"
    assert filled(dead, Limit(1.0, 10), now=8.0, lasts=LASTS).tokens == 3.0, "then it fills at the rate"
    assert not filled(dead, Limit(1.0, 10), now=8.0, lasts=LASTS).held


def test_a_server_cannot_keep_what_the_bucket_does_not_know_of():
    answer = lease(Bucket(0.0, 0.0), Limit(1.0, 10), server="a", keeps=7, needs=1, wishes=0, now=0.0, lasts=LASTS)
    assert answer.wait == 1.0
    assert answer.holds == 0.0


def test_a_clock_set_back_neither_fills_nor_blocks_for_long():
    held = {"dead": Held(until=5000.0, tokens=4)}
    answer = lease(Bucket(2.0, 4990.0, held), Limit(1.0, 10), server="a", keeps=0, needs=1, wishes=0, now=10.0, lasts=LASTS)
    assert (answer.wait, answer.bucket.tokens) == (0.0, 1.0)
    assert answer.bucket.held["dead"].until == 20.0


@given(
    st.integers(0, 100), st.integers(0, 100), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 30), st.integers(1, 50),
    st.integers(0, 500),
)  # fmt: skip
def test_waiting_taken_and_granted_stay_within_the_quota(quota, waiting, taken, in_flight, needs, wishes):
    found = room(quota, waiting=waiting, taken=taken, in_flight=in_flight, needs=needs, wishes=wishes)
    if found.short:
        assert found.slots == 0
        assert waiting + sum(taken) + in_flight + needs > quota
    else:
        assert found.slots >= needs
        assert waiting + sum(taken) + in_flight + found.slots <= quota
        assert found.slots <= max(needs, (quota - waiting - sum(taken) - in_flight) / 4), "the others find room too"


@given(st.floats(1, 1e9), st.integers(0, 10**9), st.floats(0, 1), st.integers(0, 10**9))
def test_only_next_to_nothing_is_held_for_long(burst, quota, part, slots):
    limit, tokens = Limit(1.0, burst), burst * part
    small = tokens <= burst / SMALL and slots <= quota / SMALL
    assert holding(limit, quota, tokens=tokens, slots=slots) is (LONG if small else BRIEF)
    assert holding(None, None, tokens=0.0, slots=0) is LONG


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_a_tenant_that_submits_steadily_asks_ever_less_often(lately, needs):
    assert wish(lately, needs) >= needs
    assert wish(wish(lately, needs), needs) >= 2 * wish(lately, needs)

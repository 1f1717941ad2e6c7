"""Rate limit and waiting quota on a real database, with several servers (A3 E6)."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace

import msgspec
import pytest

from headway.api.tenants import limits_of
from headway.control import expanding
from headway.control.allowances import MANY_WAIT, Allowances
from headway.domain.lifecycle import State
from headway.domain.tenant import Subscription
from headway.errors import Forbidden, HeadwayError, IdempotencyConflict, InvalidInput, LimitExceeded, TooLarge
from headway.policy.holding import LONG
from tests.support.engine import ScriptedAgent, engine, function, state_of, submit
from tests.support.ordering import explained
from tests.support.waiting import eventually
from tests.support.windows import Taken, assert_within


async def subscribe(*cores, tenant: int = 1, **fields) -> None:
    """The tenant's subscription from now on, known to all of these servers."""
    body = msgspec.json.encode(Subscription(isolation="none", **fields)).decode()
    async with cores[0].database.cold() as connection:
        await connection.execute("update tenant set subscription = $2, changed_at = clock_timestamp() where id = $1", tenant, body)
    for core in cores:
        await core.tenants.refresh()


async def stored(core) -> int:
    async with core.database.cold() as connection:
        return await connection.fetchval("select count(*) from task")


async def many(core, count: int):
    return await submit(core, *[function() for _ in range(count)])


async def test_above_the_burst_the_answer_is_limit_exceeded_with_the_time_to_wait_and_nothing_is_stored(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=36, burst=5)
        await many(core, 5)
        with pytest.raises(LimitExceeded) as refused:
            await many(core, 2)
        assert 100.0 < refused.value.retry_after <= 200.0
        assert await stored(core) == 5


async def test_a_bulk_is_all_or_nothing(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=36, burst=5)
        await many(core, 3)
        with pytest.raises(LimitExceeded):
            await many(core, 3)
        await many(core, 2)
        assert await stored(core) == 5


async def test_who_waits_as_long_as_told_is_served(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=3_600, burst=2)
        with pytest.raises(LimitExceeded) as refused:
            await _many_times(core, 100)  # a slow machine earns more while it asks
        await asyncio.sleep(refused.value.retry_after + 0.01)  # what the client is told to do is what is tested
        await many(core, 1)


async def _many_times(core, count: int) -> None:
    for _ in range(count):
        await many(core, 1)


async def test_three_servers_together_keep_to_the_limit_in_every_window(dsn):
    rate, burst = 200.0, 40
    async with AsyncExitStack() as stack:
        cores = [await stack.enter_async_context(engine(dsn, holder=f"server-{i}")) for i in range(3)]
        await subscribe(*cores, rate_per_hour=rate * 3600, burst=burst)
        taken: list[Taken] = []

        async def flood(core, size: int) -> None:
            while len(taken) < burst + 2 * rate:  # what was paid for can be used
                asked = time.monotonic()
                try:
                    await many(core, size)
                    taken.extend([Taken(asked, time.monotonic())] * size)
                except LimitExceeded as error:
                    await asyncio.sleep(min(error.retry_after, 0.01))

        async with asyncio.timeout(120):
            await asyncio.gather(*(flood(core, size) for core in cores for size in (1, 1, 3, 7)))
        assert len(taken) == await stored(cores[0])
        assert_within(taken, rate=rate, burst=burst)


async def test_a_server_that_dies_takes_tokens_with_it_and_makes_none(dsn):
    async with engine(dsn, holder="a") as first, engine(dsn, holder="b") as second:
        await subscribe(first, second, rate_per_hour=3.6, burst=20)
        for _ in range(4):
            await many(first, 1)  # takes a few more in advance each time
        held = first.allowances.limited[1].tokens
        assert held > 0
        first.allowances.limited.clear()  # as if killed: nobody spends or returns them
        spent = 4
        while True:
            try:
                await many(second, 1)
                spent += 1
            except LimitExceeded:
                break
        assert spent <= 20 - held + 1


async def test_what_an_idle_server_holds_goes_back(dsn):
    async with engine(dsn, holder="a") as first, engine(dsn, holder="b") as second:
        await subscribe(first, second, rate_per_hour=3.6, burst=20)
        for _ in range(4):
            await many(first, 1)
        mine = first.allowances.limited[1]
        assert mine.tokens > 0
        mine.used_at -= LONG.idle_s + 1.0
        assert await first.allowances.run_once() == 1
        await many(second, 16)
        with pytest.raises(LimitExceeded):
            await many(second, 1)


async def test_a_flood_of_refused_requests_asks_the_database_at_most_now_and_then(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=36, burst=2)
        await many(core, 2)
        asked = 0
        transact = core.database.transact_aside

        async def counting(work):
            nonlocal asked
            asked += 1
            return await transact(work)

        core.database.transact_aside = counting
        for _ in range(200):
            with pytest.raises(LimitExceeded):
                await core.allowances.take(1, 1)
        assert asked <= 3


async def test_when_the_database_goes_away_in_the_middle_tokens_are_lost_never_doubled(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=3.6, burst=10)
        await many(core, 1)
        transact = core.database.transact_aside

        async def lost_after_commit(work):
            await transact(work)
            raise HeadwayError("the answer was lost")

        core.database.transact_aside = lost_after_commit
        with pytest.raises(HeadwayError, match="the answer was lost"):
            await core.allowances.take(1, 4)
        core.database.transact_aside = transact
        taken = 1
        while True:
            try:
                await core.allowances.take(1, 1)
                taken += 1
            except LimitExceeded:
                break
        assert taken <= 10 - 3


async def test_waiting_tasks_are_kept_below_the_quota_over_all_servers(dsn):
    async with AsyncExitStack() as stack:
        cores = [await stack.enter_async_context(engine(dsn, holder=f"server-{i}")) for i in range(3)]
        await subscribe(*cores, max_waiting=100)

        async def fill(core) -> None:
            for size in (7, 5, 3, 2, 1) * 8:
                try:
                    await many(core, size)
                except LimitExceeded:
                    core.allowances.limited[1].forget()  # do not believe it: ask again

        await asyncio.gather(*map(fill, cores))
        assert 80 <= await stored(cores[0]) <= 100


async def test_tasks_that_ran_make_room_in_the_quota(dsn):
    async with engine(dsn) as core:
        await subscribe(core, max_waiting=3)
        await many(core, 3)
        with pytest.raises(LimitExceeded, match="quota of 3"):
            await many(core, 1)
        agent = await ScriptedAgent(core).join()
        await agent.orders(3)
        core.allowances.limited[1].forget()
        await many(core, 1)


async def test_a_paused_task_that_no_node_has_still_waits_and_is_not_shown_as_running(dsn):
    async with engine(dsn) as core:
        await subscribe(core, max_waiting=3)
        receipt = await many(core, 3)
        for task in receipt.ids:
            await core.steering.pause(task, None)
        core.allowances.limited[1].forget()
        with pytest.raises(LimitExceeded, match="quota of 3"):
            await many(core, 1)
        limits = await limits_of(core, 1, "default")
        assert (limits.running.used, limits.cpus.used, limits.waiting.used) == (0, 0, 3)
        assert sum(view.running for view in (await core.queue_views.look(None))[0]) == 0


async def test_a_suspended_tenant_submits_nothing(dsn):
    async with engine(dsn) as core:
        await subscribe(core, suspended=True)
        with pytest.raises(Forbidden, match="suspended"):
            await many(core, 1)
        await subscribe(core)
        await many(core, 1)


async def test_a_tenant_without_limits_has_no_entry_and_asks_nobody(dsn):
    async with engine(dsn) as core:
        assert await core.allowances.take(1, 1_000_000) is None


async def test_a_repeat_of_a_request_costs_nothing_and_is_answered_above_the_limit_too(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=1, burst=3)
        first = await submit(core, function(idempotency_key="k", input=1))
        for _ in range(10):
            assert (await submit(core, function(idempotency_key="k", input=1))).ids == first.ids
        await many(core, 2)
        with pytest.raises(LimitExceeded):
            await many(core, 1)
        again = await submit(core, function(idempotency_key="k", input=1))
        assert (again.ids, again.created) == (first.ids, [False])
        with pytest.raises(LimitExceeded):
            await submit(core, function(idempotency_key="k", input=2))
        with pytest.raises(LimitExceeded):
            await submit(core, function(idempotency_key="k", input=1), function(idempotency_key="new"))
        assert await stored(core) == 3


async def test_a_request_that_is_refused_costs_nothing(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=1, burst=3)
        await submit(core, function(idempotency_key="k", input=1))
        for _ in range(5):
            with pytest.raises(IdempotencyConflict):
                await submit(core, function(idempotency_key="k", input=2))
        await many(core, 2)


async def test_the_tasks_of_a_list_wait_for_the_rate_and_a_list_above_the_burst_fails_its_task(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=2 * 3600, burst=4)
        agent = await ScriptedAgent(core, cpus=8).join()
        began = time.monotonic()
        await submit(core, function(name="list"), function(name="work", for_each={"result_of": "list"}), tree="t")
        await agent.succeed(*await agent.orders(), result=b"[1, 2, 3, 4]")
        await agent.orders(4)
        assert time.monotonic() - began > 0.9  # of the burst two were left
        with pytest.raises(InvalidInput, match="more than the burst of 4"):
            await submit(core, function(for_each=[1, 2, 3, 4, 5]))
        await subscribe(core, max_waiting=3)
        listed = await submit(core, function(name="list"), function(name="work", for_each={"result_of": "list"}), tree="t")
        await agent.succeed(*await agent.orders(), result=b"[1, 2, 3, 4]")

        async def failed() -> bool:
            return await state_of(core, listed.ids[1]) == State.FAILED

        await eventually(failed)


async def test_a_list_that_is_expanded_again_takes_its_tokens_once(dsn, monkeypatch):
    copied, tries = expanding.copy_tasks, []

    async def deadlocked_once(connection, rows):
        await copied(connection, rows)
        tries.append(rows)
        if len(tries) == 1:
            await connection.execute("do $$ begin raise exception 'by the test' using errcode = '40P01'; end $$")

    monkeypatch.setattr(expanding, "copy_tasks", deadlocked_once)
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=1, burst=4)
        agent = await ScriptedAgent(core, cpus=8).join()
        await submit(core, function(for_each=[1, 2]))
        assert (len(await agent.orders(2)), len(tries)) == (2, 2)


async def test_a_list_that_cannot_be_carried_out_costs_nothing(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=3.6, burst=20)
        [task] = (await submit(core, {"command": ["true", "${item.w}"], "for_each": [1] * 10})).ids

        async def failed() -> bool:
            return await state_of(core, task) == State.FAILED

        await eventually(failed)
        await many(core, 19)
        with pytest.raises(LimitExceeded):
            await many(core, 1)


async def test_explain_says_of_a_list_what_the_limiter_said_and_until_when(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=3600, burst=4)
        agent = await ScriptedAgent(core, cpus=8).join()
        listed = await submit(core, function(name="list"), function(name="work", for_each={"result_of": "list"}), tree="t")
        await subscribe(core, rate_per_hour=1, burst=4)  # of four, some are missing: hours
        await agent.succeed(*await agent.orders(), result=b"[1, 2, 3, 4]")

        async def reason():
            [found] = (await explained(core, listed.ids[1])).reasons
            return found if found.code == "limit" else None

        found = await eventually(reason)
        assert "4 tasks are more than your subscription allows now: 1 an hour, 4 at once" in found.text
        assert 0.9 < (found.until - core.clock.now()).total_seconds() / 3600 < 4.1
        await subscribe(core, suspended=True)
        core.timekeeper.expander._later.clear()
        core.bus.scheduled()

        async def suspended() -> bool:
            found = await reason()
            return found is not None and "suspended" in found.text and found.until is None

        await eventually(suspended)


async def test_more_at_once_than_ever_can_pass_is_not_told_to_try_again(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=600, burst=4)
        with pytest.raises(TooLarge, match="more than the burst of 4 of your subscription: they can never be accepted") as error:
            await many(core, 5)
        assert (error.value.hint or "").startswith("send at most 4 together, and the next after 24s")
        assert "retry_after" not in error.value.extra
        await many(core, 4)  # it cost nothing
        await subscribe(core, max_waiting=6)
        with pytest.raises(TooLarge, match="more than the 6 that may wait") as error:
            await many(core, 7)
        assert "retry_after" not in error.value.extra
        with pytest.raises(LimitExceeded):  # four wait: this may pass later
            await many(core, 6)


async def test_a_repeat_of_a_request_is_answered_though_the_burst_is_smaller_by_now(dsn):
    async with engine(dsn) as core:
        await subscribe(core, rate_per_hour=600, burst=4)
        first = await submit(core, *(function(idempotency_key=f"k{n}") for n in range(3)))
        await subscribe(core, rate_per_hour=600, burst=2)
        assert (await submit(core, *(function(idempotency_key=f"k{n}") for n in range(3)))).ids == first.ids


class Counted:
    """A server's allowances of their own, that nobody else looks after, and how many transactions they took."""

    def __init__(self, core, name: str = "another") -> None:
        self.core = core
        self.transactions = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.allowances = Allowances(SimpleNamespace(transact_aside=self._transact), core.tenants, name)

    async def _transact(self, work):
        self.transactions += 1
        await self.gate.wait()
        return await self.core.database.transact_aside(work)


async def tenants_with(core, count: int, **fields) -> list[int]:
    """Tenants that all have these limits."""
    numbers = [(await core.access.add_tenant(f"t{n}"))[0] for n in range(count)]
    body = msgspec.json.encode(Subscription(isolation="none", **fields)).decode()
    async with core.database.cold() as connection:
        await connection.execute("update tenant set subscription = $1::jsonb, changed_at = clock_timestamp()", body)
    await core.tenants.refresh()
    return numbers


async def test_what_is_left_of_many_idle_tenants_goes_back_in_one_transaction(dsn):
    async with engine(dsn) as core:
        counted = Counted(core)
        mine = counted.allowances
        numbers = await tenants_with(core, 20, rate_per_hour=3.6, burst=20)
        for number in numbers:
            (await mine.take(number, 1)).stored(1)
        for number in numbers:
            mine.limited[number].used_at -= LONG.idle_s + 1.0
            mine.limited[number].counted_until += 60.0  # a slow machine
        assert all(mine.limited[number].tokens > 0 for number in numbers)
        assert counted.transactions == 20
        assert await mine.run_once() == 20
        assert counted.transactions == 21


async def test_tenants_that_ask_at_the_same_time_share_a_transaction_and_each_keeps_to_its_own_limits(dsn):
    async with engine(dsn) as core:
        counted = Counted(core)
        numbers = await tenants_with(core, 20, rate_per_hour=0.001, burst=10, max_waiting=8)
        asked = [(number, count) for number in numbers for count in (3, 4, 2)]  # the third is above the quota
        results = await asyncio.gather(*(counted.allowances.take(*one) for one in asked), return_exceptions=True)
        assert [isinstance(result, LimitExceeded) for result in results] == [False, False, True] * 20
        assert counted.transactions <= 6  # the first alone, then all others, and again for those of a tenant that had to wait for its turn


async def test_who_gives_up_while_it_asks_leaves_its_tenant_free_to_ask_again(dsn):
    async with engine(dsn) as core:
        counted, other = Counted(core), Counted(core, "third").allowances
        one, two = await tenants_with(core, 2, rate_per_hour=0.001, burst=10)
        counted.gate.clear()
        first = asyncio.ensure_future(counted.allowances.take(one, 1))
        await eventually(lambda: counted.transactions)
        waits = asyncio.ensure_future(counted.allowances.take(two, 4))
        await eventually(lambda: counted.allowances._waiting, what="it waits for the next one")
        waits.cancel()
        await asyncio.wait([waits])
        again = asyncio.ensure_future(counted.allowances.take(two, 4))
        counted.gate.set()
        assert (await first).in_flight == 1
        assert (await again).in_flight == 4
        assert (await other.take(two, 3)).in_flight == 3, "what was not asked for was not taken"


async def test_tokens_are_taken_and_given_back_though_every_connection_of_the_tasks_is_lent(dsn, monkeypatch):
    """Who holds one and asks for tokens waits for none of them."""
    monkeypatch.setattr("headway.store.database.LOAN_S", 0.2)
    async with engine(dsn) as core, AsyncExitStack() as held:
        await subscribe(core, rate_per_hour=3600, burst=100)
        for _ in range(core.database._hot._size):
            await held.enter_async_context(core.database.hot())
        assert (await core.allowances.take(1, 3)).in_flight == 3
        core.allowances.limited[1].stored(3)
        core.allowances.limited[1].used_at = -math.inf
        assert await core.allowances.run_once() == 1


async def test_the_tokens_of_tenants_that_wait_by_the_ten_thousand_leave_connections_to_the_duties(dsn, monkeypatch):
    """Each of them is counted alone, which takes its time."""
    from headway.control import allowance_rows

    async with engine(dsn) as core:
        numbers = await tenants_with(core, 8, rate_per_hour=3600, burst=100)
        for number in numbers:
            core.allowances.limited[number].waiting = MANY_WAIT + 1
        core.allowances.limited[numbers[0]].waiting = 0  # and one that asks as most do
        real, held, most = allowance_rows.lease, 0, 0

        async def counted(connection, asks, *, server):
            nonlocal held, most
            held += 1
            most = max(most, held)
            await connection.execute("select pg_sleep(0.05)")
            held -= 1
            return await real(connection, asks, server=server)

        monkeypatch.setattr(allowance_rows, "lease", counted)
        await asyncio.gather(*(core.allowances.take(number, 1) for number in numbers))
        assert most == 2
        assert most < core.database._cold._size


async def test_what_a_server_holds_goes_back_soon_when_the_limits_are_others(dsn):
    async with engine(dsn, holder="a") as core:
        await subscribe(core, rate_per_hour=3.6, burst=100_000)
        await many(core, 10)
        mine = core.allowances.limited[1]
        assert (mine.holding, mine.tokens) == (LONG, 80)
        await subscribe(core, rate_per_hour=3.6, burst=20)

        async def returned() -> bool:
            async with core.database.cold() as connection:
                return await connection.fetchval("select held = '{}' from allowance where tenant = 1")

        await eventually(returned)

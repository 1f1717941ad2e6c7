"""A server that is frozen: agents fence themselves, another server leads, and what the old one still wants to write is refused."""

from __future__ import annotations

import signal

import asyncpg

from tests.support.cluster import Cluster, cluster
from tests.support.waiting import eventually

# Who wrote a lease, and who led when it was written. Each server logs in under a name of its own.
AUDIT = """
create table public.audit (who text, holder text, epoch bigint);
create function public.note_lease() returns trigger language plpgsql security definer as $$
begin
    insert into public.audit select session_user, holder, epoch from headway.duty where name = 'planner';
    return new;
end $$;
create trigger note_lease after update on headway.task for each row when (new.state = 3 and old.state = 2)
    execute function public.note_lease();
"""


async def test_a_frozen_server_makes_its_agent_fence_itself_and_the_tasks_run_once_elsewhere(tmp_path):
    async with cluster(tmp_path, agents=0) as made:
        first = made.servers[0]
        second = await made.add_server()
        cut_off = await made.add_agent(servers=[first])
        ids = await made.submit(made.program(held=made.held), made.function(held=made.held))
        for task in ids:
            await made.until_running(task)
        first.send(signal.SIGSTOP)
        await eventually(lambda: _no_tasks(cut_off), what="the agent ends its tasks by itself")
        await made.add_agent(servers=[second])
        await made.until_final()
        await made.assert_sound()
        first.send(signal.SIGCONT)
        await made.until_node(cut_off.name, "up")
        more = await made.submit(made.function(), server=first)
        await made.until_final()
        await made.assert_sound()
        rows = await made.fetch("select attempt from task_history where id = any ($1::bigint[])", ids)
        assert [row["attempt"] for row in rows] == [2, 2]
        assert await made.fetchval("select attempt from task_history where id = $1", more[0]) == 1


async def _no_tasks(agent) -> bool:
    found = agent.processes()
    return not found["task"]


async def test_a_deposed_leader_that_wakes_up_writes_nothing(tmp_path):
    async with cluster(tmp_path, agents=0) as made:
        old = made.servers[0]
        old_holder = await made.fetchval("select holder from duty where name = 'planner'")
        await _execute(made, "create role second superuser login", AUDIT)
        new = await made.add_server(dsn=made.dsn.replace("headway@", "second@"))
        agent = await made.add_agent(servers=[new])
        for _ in range(3):
            await made.submit(*(made.function() for _ in range(20)), server=old)
        await made.until_final()
        old.send(signal.SIGSTOP)
        await made.until("select holder <> $1 from duty where name = 'planner'", old_holder)
        await made.submit(*(made.function(0.2) for _ in range(200)), server=new)
        old.send(signal.SIGCONT)  # it believes that it leads, and there is work to give away
        for server in (old, new) * 5:
            await made.submit(*(made.function() for _ in range(20)), server=server)
        await made.until_final()
        await made.assert_sound()
        await made.until_node(agent.name, "up")
        rows = await made.fetch("select who, holder, count(*) as leases from public.audit group by 1, 2")
        new_holder = await made.fetchval("select holder from duty where name = 'planner'")
        written = {(row["who"], row["holder"]) for row in rows}
        assert written == {("headway", old_holder), ("second", new_holder)}


async def test_a_server_that_is_killed_is_replaced_within_its_lease(tmp_path):
    async with cluster(tmp_path, servers=2) as made:
        leader = await made.fetchval("select url from server s join duty d on d.holder = s.boot where d.name = 'planner'")
        dead = next(server for server in made.servers if server.url == leader)
        other = next(server for server in made.servers if server is not dead)
        dead.kill()
        await made.submit(*(made.function() for _ in range(50)), server=other)
        await made.until_final()
        await made.assert_sound()


async def test_a_server_that_is_asked_to_end_hands_its_duties_on_at_once(tmp_path):
    # Who waited for the lease to run out would wait longer than anybody here does.
    async with cluster(tmp_path, servers=2, HEADWAY_DUTY_LEASE_S="3000") as made:
        leader = await made.fetchval("select url from server s join duty d on d.holder = s.boot where d.name = 'planner'")
        leaving = next(server for server in made.servers if server.url == leader)
        leaving.send(signal.SIGTERM)
        assert leaving.popen is not None
        assert leaving.popen.wait(120) == 0
        other = next(server for server in made.servers if server is not leaving)
        await made.submit(*(made.function() for _ in range(20)), server=other)
        await made.until_final()
        await made.assert_sound()


async def _execute(made: Cluster, *statements: str) -> None:
    connection = await asyncpg.connect(made.dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()

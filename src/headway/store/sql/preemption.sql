-- Tasks that made room for others.

-- name: of
-- The task that this attempt is out of the way of now. What an earlier attempt lent is forgotten a moment after its node was lost.
select beneficiary from preemption where task = $1 and attempt = $2 and node = $3 and resumed_at is null;

-- name: late
-- What is to be known of waiting tasks whose start is overdue.
select id, tenant, shape, category, cap_ms, start_by from task where id = any ($1::bigint[]) and state = 2;

-- name: candidates
-- Running tasks on these nodes, of these tenants if any are named, that might stop for another: the longest first, with what they would lose
-- and when they last did.
select t.id, t.tenant, t.attempt, t.node, t.shape, t.definition, t.cap_ms, extract(epoch from clock_timestamp() - t.started_at)::float8 as ran_s,
    extract(epoch from clock_timestamp() - greatest(t.started_at, (
        select max(c.saved_at) from checkpoint c where c.task = t.id and c.attempt = t.attempt)))::float8 as unsaved_s,
    coalesce(p.times, 0) as times, coalesce(extract(epoch from p.resumed_at - p.since), 0)::float8 as away_s,
    coalesce(extract(epoch from clock_timestamp() - p.resumed_at), 0)::float8 as back_s
from task t left join preemption p on p.task = t.id
where t.node = any ($1::int[]) and t.state = 4 and t.category <> 0 and t.hold_at is null and t.cancel_at is null
    and ($3::int[] is null or t.tenant = any ($3))
order by t.cap_ms desc limit $2;

-- name: lock
-- The tasks of a choice, in order; they may have changed since they were looked at.
select id, tenant, attempt, node, state, shape, hold_at, cancel_at from task where id = any ($1::bigint[]) order by id for update;

-- name: note
-- These made room for that one.
insert into preemption (task, attempt, node, mode, beneficiary)
select r.id, r.attempt, $4, r.mode, $5 from unnest($1::bigint[], $2::int[], $3::text[]) as r (id, attempt, mode)
on conflict (task) do update set attempt = excluded.attempt, node = excluded.node, mode = excluded.mode, beneficiary = excluded.beneficiary,
    times = preemption.times + 1, since = clock_timestamp(), resumed_at = null;

-- name: lend
-- The room of those that stopped goes to the one they stopped for: it is leased to their node, and begins when they stand still. A node that
-- was lost or removed since gets nothing: nobody would miss it there.
-- event: lease
update task t set state = 3, node = $2, attempt = t.attempt + 1, leased_at = clock_timestamp()
where t.id = $1 and t.state = 2 and t.shape = $3 and (select n.state from node n where n.id = $2) = 0
returning t.id, t.attempt, t.node, t.definition, t.input, t.name, t.eligible_at;

-- name: open
-- Everyone who is out of the way now, and whether the one they stopped for still needs the room.
select p.task, p.attempt, p.node, p.mode, p.beneficiary, extract(epoch from clock_timestamp() - p.since)::float8 as away_s,
    t.id is not null as held, t.state, t.hold_at, t.shape, t.tenant, b.id is not null as needed
from preemption p
left join task t on t.id = p.task and t.attempt = p.attempt and t.node = p.node
left join task b on b.id = p.beneficiary and b.node = p.node
where p.resumed_at is null order by p.task;

-- name: pass_on
-- The room goes on to another task that is late, while its owner stays out of the way.
update preemption set beneficiary = $2 where beneficiary = $1 and node = $3 and resumed_at is null;

-- name: back
-- They run on.
update preemption set resumed_at = clock_timestamp() where task = any ($1::bigint[]) and resumed_at is null;

-- name: forget
-- Tasks that left their node: nothing is owed to them any more.
delete from preemption p where not exists (select 1 from task t where t.id = p.task and t.attempt = p.attempt and t.node = p.node);

-- name: remember
-- Tasks just stored whose definitions have a limit on waiting. $5: at which part of the limit to look first.
insert into waiting_limit (task, due_at, since, limit_ms, keep)
select t.id, greatest(t.eligible_at, statement_timestamp()) + d.limit_ms * $5::float8 * interval '1 millisecond',
    case when t.state <> 0 then t.eligible_at end, d.limit_ms, d.keep
from task t join unnest($2::int[], $3::bigint[], $4::bool[]) as d (definition, limit_ms, keep) on d.definition = t.definition
where t.id = any ($1::bigint[])
on conflict (task) do update set due_at = excluded.due_at, since = excluded.since, limit_ms = excluded.limit_ms, keep = excluded.keep,
    warned = false;

-- name: remember_tree
-- The same for all tasks of a tree just stored.
insert into waiting_limit (task, due_at, since, limit_ms, keep)
select t.id, greatest(t.eligible_at, statement_timestamp()) + d.limit_ms * $5::float8 * interval '1 millisecond',
    case when t.state <> 0 then t.eligible_at end, d.limit_ms, d.keep
from tree_part p
join task t on t.id between p.first and p.last
join unnest($2::int[], $3::bigint[], $4::bool[]) as d (definition, limit_ms, keep) on d.definition = t.definition
where p.tree = $1
on conflict (task) do update set due_at = excluded.due_at, since = excluded.since, limit_ms = excluded.limit_ms, keep = excluded.keep,
    warned = false;

-- name: change
-- A waiting task has another limit, or another time: it is looked at again now. It has waited for as long as before, unless its time was
-- moved.
insert into waiting_limit (task, due_at, since, limit_ms, keep)
select t.id, statement_timestamp(),
    case when t.state = 0 then null when t.requeues > 0 then coalesce(w.since, t.eligible_at) else t.eligible_at end, $2, $3
from task t left join waiting_limit w on w.task = t.id where t.id = $1
on conflict (task) do update set due_at = excluded.due_at, since = excluded.since, limit_ms = excluded.limit_ms, keep = excluded.keep,
    warned = waiting_limit.warned and waiting_limit.limit_ms = excluded.limit_ms and waiting_limit.since is not distinct from excluded.since;

-- name: next
-- Seconds until the first is due; null when nobody waits with a limit.
select extract(epoch from min(due_at) - clock_timestamp())::float8 from waiting_limit;

-- name: due
select task from waiting_limit where due_at <= clock_timestamp() order by due_at limit $1;

-- name: lock
-- The tasks behind them, locked in order, and the moment.
with locked as materialized (
    select id, tenant, state, requeues, eligible_at from task where id = any ($1::bigint[]) order by id for update
)
select id, tenant, state, requeues, extract(epoch from eligible_at)::float8 as eligible_at,
    extract(epoch from clock_timestamp())::float8 as now from locked;

-- name: limits
-- Of tasks that are locked: somebody may have changed a limit until then.
select task, extract(epoch from since)::float8 as since, limit_ms, keep, warned from waiting_limit
where task = any ($1::bigint[]) order by task;

-- name: look_again
update waiting_limit w set due_at = to_timestamp(r.due_at), since = to_timestamp(r.since), warned = w.warned or r.warned
from unnest($1::bigint[], $2::float8[], $3::float8[], $4::bool[]) as r (task, due_at, since, warned) where w.task = r.task;

-- name: forget
delete from waiting_limit where task = any ($1::bigint[]);

-- name: remember_restored
-- The same for tasks of a tree that is tried again (the temporary table `restore`, see restore.sql); their limits are in their definitions.
insert into waiting_limit (task, due_at, since, limit_ms, keep)
select t.id, greatest(t.eligible_at, statement_timestamp()) + p.limit_ms * $1::float8 * interval '1 millisecond',
    case when t.state <> 0 then t.eligible_at end, p.limit_ms, p.keep
from restore r join task t on t.id = r.id join definition d on d.id = t.definition and d.body like '%"patience"%'
cross join lateral (
    select (d.body::jsonb #>> '{patience,limit_ms}')::bigint as limit_ms, coalesce((d.body::jsonb #>> '{patience,keep}')::bool, false) as keep
) p
where p.limit_ms > 0
on conflict (task) do update set due_at = excluded.due_at, since = excluded.since, warned = false;

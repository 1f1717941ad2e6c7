-- Rows are found by the ids of a list, one by one: `t.id between r.id and r.id`. With `=` PostgreSQL would also think of reading the whole
-- primary key in order, as a merge would want it, and it does so for ever after a vacuum that found the table drained: each lease of the
-- next ten thousand tasks then reads all of them. A range has no order to keep, so the list is what drives the join, whatever the statistics say.
-- Statements that answer with a time for each of thousands of rows answer in microseconds: as `timestamptz` it costs the server 0.7 µs to read.

-- name: lease
-- Gives ready tasks to nodes, if this server still leads the planner and they are still of the shape that was planned (F5: PATCH). Ids come sorted, so locks are taken in order.
-- A node that was declared lost gets nothing: its tasks became ready in the same commit, so who sees them sees that too (I1). Nor does one that
-- was removed since: nobody would ever miss it. $5: the nodes of $2, each once.
-- event: lease
with fence as materialized (
    select 1 from duty where name = 'planner' and epoch = $3 and expires_at > clock_timestamp() for key share
), away as materialized (
    select d.id from unnest($5::ints) as d (id) left join node n on n.id between d.id and d.id where +n.state is distinct from 0
)
update task t
set state = 3, node = p.node, attempt = t.attempt + 1, leased_at = clock_timestamp()
from unnest($1::longs, $2::ints, $4::ints) as p (id, node, shape)
where t.id between p.id and p.id and +t.state = 2 and +t.shape = p.shape and exists (select 1 from fence)
    and (p.node in (select id from away)) is not true
returning t.id, t.attempt, t.node, t.definition, t.input, t.name, (date_part('epoch', t.eligible_at) * 1000000)::bigint as eligible_us;

-- name: express
-- Stores a few tasks and gives them to nodes at once, if this server still leads the planner and all of these nodes are up; otherwise they are
-- stored as ready.
with fence as materialized (
    select 1 from duty where name = 'planner' and epoch = $14 and expires_at > clock_timestamp() for key share
), leads as materialized (
    select exists (select 1 from fence) and not exists (
        select 1 from unnest($13::int[]) as d (id) left join node n on n.id between d.id and d.id where +n.state is distinct from 0
    ) as ok
)
insert into task (id, start_by, eligible_at, tenant, definition, shape, cap_ms, category, size, name, labels, input, node, attempt,
    leased_at, state)
select r.id, r.start_by, r.eligible_at, r.tenant, r.definition, r.shape, r.cap_ms, r.category, r.size, r.name, r.labels::jsonb, r.input,
    case when ok then r.node end, case when ok then 1 else 0 end, case when ok then clock_timestamp() end, case when ok then 3 else 2 end
from leads, unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::int[], $5::int[], $6::int[], $7::int[], $8::smallint[],
    $9::float8[], $10::text[], $11::text[], $12::bytea[], $13::int[])
    as r (id, start_by, eligible_at, tenant, definition, shape, cap_ms, category, size, name, labels, input, node)
returning id, attempt, node, definition, input, name, state;

-- name: orders_of
-- What a node was given and may not have received: its leased rows.
select id, attempt, definition, input, name from task where node = $1 and state = 3 order by leased_at, id;

-- name: begun_of
-- Those of some tasks that began on a node, as orders.
select id, attempt, definition, input, name from task where node = $1 and id = any ($2::bigint[]) and state in (4, 5);

-- name: cancelled_of
-- Attempts on a node that shall end.
select id, attempt from task where node = $1 and state in (3, 4, 5) and cancel_at is not null;

-- name: held_by
-- Every attempt a node answers for, as the database sees it.
select id, attempt, state, shape, tenant, start_by, cap_ms, cancel_at from task where node = $1 and state in (3, 4, 5);

-- name: start
-- Attempts that are still running at their node's report.
-- event: start
update task t
set state = 4, started_at = greatest(t.leased_at, 'epoch'::timestamptz + r.at_ms * interval '1 millisecond')
from unnest($1::bigint[], $2::int[], $3::int[], $4::bigint[]) as r (id, attempt, node, at_ms)
where t.id between r.id and r.id and t.attempt = r.attempt and +t.node = r.node and +t.state = 3;

-- name: give_back
-- Handed out and not begun: ready again, or paused if somebody asked for it; no attempt used. The fence stays raised.
-- (`cancelling`: somebody wants it to end, and its node has not heard of that: the caller ends it.)
-- event: give_back
update task t
set state = case when t.hold_at is null then 2 else 5 end, node = null, leased_at = null
from unnest($1::bigint[], $2::int[], $3::int[]) as r (id, attempt, node)
where t.id between r.id and r.id and t.attempt = r.attempt and +t.node = r.node and +t.state = 3
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms, r.node, t.state, t.cancel_at is not null as cancelling;

-- name: succeed
-- Exactly-once finish: the row leaves the hot table and enters history in one statement, or nothing happens.
-- The answer says it by groups, with the ids of each as bytes: a row for each of thousands of tasks costs both sides more.
-- event: succeed
with done as (
    delete from task t
    using unnest($1::longs, $2::ints, $3::ints, $4::moments, $5::moments, $6::byte_strings, $7::int[], $8::int[], $9::bigint[])
        as r (id, attempt, node, started_at, ended_at, result, exit_code, cpu_ms, max_memory)
    where t.id between r.id and r.id and t.attempt = r.attempt and +t.node = r.node and +t.state in (3, 4, 5)
    returning t.*, r.started_at as begun_at, r.ended_at, r.result, r.exit_code, r.cpu_ms, r.max_memory
), kept as (
    insert into task_history (id, start_by, eligible_at, leased_at, started_at, ended_at, tree, size, max_memory, tenant, definition,
        shape, cap_ms, attempt, node, level, exit_code, cpu_ms, state, category, outcome, failures, resource_failures, node_losses,
        requeues, name, labels, key, input, result)
    select id, start_by, eligible_at, leased_at, begun_at, ended_at, tree, size, max_memory, tenant, definition, shape, cap_ms, attempt,
        node, level, exit_code, cpu_ms, 6, category, 0, failures, resource_failures, node_losses, requeues, name, labels, key, input, result
    from done
), told as (
    insert into event (tenant, kind, tasks) select tenant, 'task.succeeded', array_agg(id) from done group by tenant
)
select tenant, shape, node, has_dependants, tree, level, string_agg(int8send(id), '') as ids
from done group by tenant, shape, node, has_dependants, tree, level;

-- name: lock
-- The rows behind reports that did not succeed, locked in order, for the retry policy to decide on.
select id, attempt, node, state, tenant, shape, definition, start_by, eligible_at, leased_at, started_at, cap_ms, failures,
    resource_failures, node_losses, requeues, cancel_at, hold_at, has_dependants, tree, category
from task where id = any ($1::bigint[]) order by id for update;

-- name: retry
-- Another attempt is allowed: waits for its time, or is ready at once. The ended attempt is kept.
-- event: retry
with r as (
    select * from unnest($1::bigint[], $2::smallint[], $3::timestamptz[], $4::timestamptz[], $5::smallint[], $6::smallint[],
        $7::smallint[], $8::smallint[])
        as r (id, state, eligible_at, start_by, failures, resource_failures, node_losses, requeues)
)
update task t
set state = r.state, eligible_at = r.eligible_at, start_by = r.start_by, failures = r.failures,
    resource_failures = r.resource_failures, node_losses = r.node_losses, requeues = r.requeues,
    node = null, leased_at = null, started_at = null
from r
where t.id between r.id and r.id and +t.state in (3, 4, 5)
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms, t.state;

-- name: enlarge
-- Its next attempt gets the resources of a larger tier. The rows are locked by the caller.
update task t set definition = r.definition, shape = r.shape
from unnest($1::bigint[], $2::int[], $3::int[]) as r (id, definition, shape)
where t.id between r.id and r.id;

-- name: keep_attempts
-- Attempts that were not the last.
insert into attempt (task, attempt, node, leased_at, started_at, ended_at, outcome, exit_code, error, cpu_ms, max_memory)
select * from unnest($1::bigint[], $2::int[], $3::int[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::smallint[],
    $8::int[], $9::text[], $10::int[], $11::bigint[])
on conflict do nothing;

-- name: end_without_success
-- Cancelled, skipped or expired: into history with the reason.
-- event: cancel, skip, expire
with done as (
    delete from task t
    using unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::text[], $5::int[], $6::timestamptz[], $7::timestamptz[], $8::int[],
        $9::bigint[]) as r (id, final, outcome, error, exit_code, begun_at, ended_at, cpu_ms, max_memory)
    where t.id between r.id and r.id
    returning t.*, r.final, r.outcome, r.error, r.exit_code, r.begun_at, r.ended_at, r.cpu_ms, r.max_memory
), kept as (
    insert into task_history (id, start_by, eligible_at, leased_at, started_at, ended_at, tree, size, max_memory, tenant, definition,
        shape, cap_ms, attempt, node, level, exit_code, cpu_ms, state, category, outcome, failures, resource_failures, node_losses,
        requeues, name, labels, key, error, input)
    select id, start_by, eligible_at, leased_at, begun_at, ended_at, tree, size, max_memory, tenant, definition, shape,
        cap_ms, attempt, node, level, exit_code, cpu_ms, final, category, outcome, failures, resource_failures, node_losses, requeues, name,
        labels, key, error, input
    from done
), told as (
    insert into event (tenant, kind, tasks)
    select tenant, case final when 8 then 'task.cancelled' when 9 then 'task.skipped' else 'task.expired' end, array_agg(id)
    from done group by tenant, final
)
select id, tenant, shape, node, has_dependants, tree, level, final from done;

-- name: fail
-- Out of attempts, or impossible: kept whole as a dead letter.
-- event: fail
with done as (
    delete from task t
    using unnest($1::bigint[], $2::smallint[], $3::text[], $4::int[], $5::timestamptz[], $6::timestamptz[], $7::int[], $8::bigint[],
        $9::text[], $10::smallint[], $11::smallint[], $12::smallint[])
        as r (id, outcome, error, exit_code, begun_at, ended_at, cpu_ms, max_memory, fingerprint, f, rf, nl)
    where t.id between r.id and r.id
    returning t.*, r.outcome, r.error, r.exit_code, r.begun_at, r.ended_at, r.cpu_ms, r.max_memory, r.fingerprint, r.f, r.rf, r.nl
), kept as (
    insert into dead_letter (id, start_by, eligible_at, leased_at, started_at, ended_at, tree, size, max_memory, tenant, definition,
        shape, cap_ms, attempt, node, level, exit_code, cpu_ms, category, outcome, failures, resource_failures, node_losses,
        requeues, has_dependants, name, labels, key, error, input, fingerprint)
    select id, start_by, eligible_at, leased_at, begun_at, ended_at, tree, size, max_memory, tenant, definition, shape, cap_ms,
        attempt, node, level, exit_code, cpu_ms, category, outcome, f, rf, nl, requeues, has_dependants, name, labels, key, error,
        input, fingerprint
    from done
), told as (
    insert into event (tenant, kind, tasks) select tenant, 'task.failed', array_agg(id) from done group by tenant
)
select id, tenant, shape, node, has_dependants, tree, level from done;

-- name: come_due
-- Scheduled tasks whose time has come, oldest first, if this server still leads the timekeeper.
-- event: come_due
with fence as materialized (
    select 1 from duty where name = 'timekeeper' and epoch = $1 and expires_at > clock_timestamp() for key share
), due as materialized (
    select id from task where state = 1 and eligible_at <= clock_timestamp() and exists (select 1 from fence)
    order by eligible_at limit $2 for update skip locked
)
update task t set state = 2 from due where t.id between due.id and due.id and +t.state = 1
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms;

-- name: sweep
-- Makes the room of dead rows free again, unless somebody does it already.
vacuum (skip_locked, truncate false, parallel 0) task;

-- name: next_due
-- When the next scheduled task comes due, as seconds from now (negative: overdue), and whether a large release goes on.
select (select extract(epoch from eligible_at - clock_timestamp())::float8 from task where state = 1 order by eligible_at limit 1)
    as next_due,
    exists (select 1 from pending_release) or exists (select 1 from pending_level) or exists (select 1 from fanout where due) as deferred;

-- name: heads
-- The next tasks of each given group after its cursor, in order: groups are read by the ready index alone.
select g.n::int as n, (date_part('epoch', t.start_by) * 1000000)::bigint as start_by_us, t.cap_ms, t.id
from unnest($1::int[], $2::int[], $3::timestamptz[], $4::int[], $5::bigint[])
    with ordinality as g (tenant, shape, start_by, cap_ms, id, n)
cross join lateral (
    select start_by, cap_ms, id from task
    where state = 2 and tenant = g.tenant and shape = g.shape and (start_by, cap_ms, id) > (g.start_by, g.cap_ms, g.id)
    order by start_by, cap_ms, id limit $6
) t;

-- name: lock_ready
-- Ready tasks of one tenant and shape, locked, in their order: no node could run them any more.
select id, definition from task
where state = 2 and tenant = $1 and shape = $2 order by start_by, cap_ms, id limit $3 for update skip locked;

-- name: groups
-- Every (tenant, shape) that has a ready task: a loose scan that jumps from group to group in the ready index.
with recursive found as (
    (select tenant, shape from task where state = 2 order by tenant, shape limit 1)
    union all
    select next.tenant, next.shape from found cross join lateral (
        select tenant, shape from task
        where state = 2 and (tenant, shape) > (found.tenant, found.shape) order by tenant, shape limit 1
    ) next
)
select tenant, shape from found;

-- name: allocated
-- How many attempts of each tenant and shape each of these nodes answers for.
select node, tenant, shape, count(*)::int as count from task where node = any ($1::int[]) and state in (3, 4, 5)
group by node, tenant, shape;

-- name: cancel_waiting
-- Those of the given tasks that no node holds, locked in order; they are ended at once.
select id, tenant from task where id = any ($1::bigint[]) and node is null order by id for update;

-- name: wish_cancel
-- Tasks held by a node: the wish is recorded, the node is told, and its report ends them.
-- (A list of ids is read from the primary key in their order, and so locked in it.)
update task t set cancel_at = coalesce(t.cancel_at, clock_timestamp())
where t.id = any ($1::bigint[]) and +t.state in (3, 4, 5) and +t.node is not null
returning t.id, t.attempt, t.node;

-- name: revive
-- A dead letter becomes a ready task again: same id, the fence goes on rising, counters start over.
-- event: revive
with back as (
    delete from dead_letter d using unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::bigint[], $6::smallint[])
        as r (id, definition, shape, cap_ms, tolerance_ms, category)
    where d.id = r.id
    returning d.*, r.definition as new_definition, r.shape as new_shape, r.cap_ms as new_cap, r.tolerance_ms,
        r.category as new_category
), kept as (
    insert into attempt (task, attempt, node, leased_at, started_at, ended_at, outcome, exit_code, error, cpu_ms, max_memory)
    select id, attempt, node, leased_at, started_at, ended_at, outcome, exit_code, error, cpu_ms, max_memory
    from back where attempt > 0 and outcome is not null
    on conflict do nothing
), due as (
    update fanout f set due = true from back where f.task = back.id and back.cap_ms = 0
)
insert into task (id, start_by, eligible_at, tree, size, tenant, definition, shape, cap_ms, attempt, level, state, blocked_on,
    category, has_dependants, name, labels, key, input)
select id, clock_timestamp() + tolerance_ms * interval '1 millisecond', clock_timestamp(), tree, size, tenant, new_definition, new_shape,
    case when cap_ms = 0 then 0 else new_cap end, attempt, level, case when cap_ms = 0 then 0 else 2 end, (cap_ms = 0)::int, new_category,
    has_dependants, name, labels, key, coalesce($7::bytea, input)
from back
returning id, tenant, shape, start_by, cap_ms, tree, level, state;

-- name: mark_upstream
-- Existing tasks that new ones wait for. The update locks them, so a finish waits for our commit and then sees our edges.
with u as (select id from task where id = any ($1::bigint[]) and tenant = $2 order by id for update)
update task t set has_dependants = true from u where t.id between u.id and u.id
returning t.id;

-- name: ended_upstream
-- How upstreams that are no longer hot ended; the tenant's own only.
select id, state from task_history where id = any ($1::bigint[]) and tenant = $2
union all
select id, state from dead_letter where id = any ($1::bigint[]) and tenant = $2;

-- name: add
-- Tasks that will become many; those that wait for nothing else are due at once.
insert into fanout (task, source, items, due)
select f.task, f.source, f.items, t.blocked_on = 1
from unnest($1::bigint[], $2::bigint[], $3::bytea[]) as f (task, source, items) join task t on t.id = f.task;

-- name: due
-- Nothing but the hold keeps these back: they must be expanded or gathered.
update fanout set due = true where task = any ($1::bigint[]);

-- name: next
-- One that is due and that nobody else works on, but none of $1.
select task, source, first, last, count, items from fanout where due and task <> all ($1::bigint[]) order by task limit 1 for update skip locked;

-- name: lock
-- The task that stands for many, if it still waits for nothing but this.
select id, tenant, tree, level, definition, shape, category, name, labels, input, start_by, eligible_at, has_dependants
from task where id = $1 and state = 0 and blocked_on = 1 for update;

-- name: settled
update fanout set due = false where task = $1;

-- name: waits
-- Why it does not become tasks yet; $3: in how many seconds it may, when that is known. The same again is not written.
update fanout set waits = $2, waits_until = clock_timestamp() + $3::float8 * interval '1 second'
where task = $1 and (waits is distinct from $2 or ($3::float8 is null) <> (waits_until is null) or waits_until < clock_timestamp());

-- name: expanded
update fanout set due = false, first = $2, last = $3, count = $4, waits = null, waits_until = null where task = $1;

-- name: hold
-- It now waits for its tasks. The caller has locked it.
update task set blocked_on = $2 + 1 where id = $1;

-- name: result_of
-- The result of a task that has ended well.
select result from task_history where id = $1;

-- name: not_well
-- The first of its tasks that did not succeed, and whether one of those failed or expired. None: all went well.
select min(u.id) as first, bool_or(u.state in (7, 10)) as failed from (
    select id, state from task_history where id between $2 and $3 and state <> 6
    union all select id, 7 from dead_letter where id between $2 and $3
) u cross join lateral (select 1 from edge where upstream = u.id and downstream = $1 offset 0) e;

-- name: results
-- The results of its tasks, in the order of the items.
select h.result from edge e join task_history h on h.id = e.upstream
where e.downstream = $1 and e.upstream between $2 and $3 order by e.upstream;

-- name: size
select coalesce(sum(coalesce(length(h.result), 4) + 1), 0)::bigint from edge e join task_history h on h.id = e.upstream
where e.downstream = $1 and e.upstream between $2 and $3;

-- name: gather
-- All of its tasks have succeeded: so has it, and its result is the list of theirs.
-- event: gather
with done as (
    delete from task t where t.id = $1 and t.state = 0 returning t.*
), kept as (
    insert into task_history (id, start_by, eligible_at, leased_at, started_at, ended_at, tree, size, tenant, definition, shape, cap_ms,
        attempt, level, state, category, outcome, failures, resource_failures, node_losses, requeues, name, labels, key, input, result)
    select id, start_by, eligible_at, null, null, clock_timestamp(), tree, size, tenant, definition, shape, cap_ms, attempt, level, 6,
        category, 0, failures, resource_failures, node_losses, requeues, name, labels, key, input, $2
    from done
), told as (
    insert into event (tenant, kind, tasks) select tenant, 'task.succeeded', array[id] from done
)
select id, has_dependants, tree, level from done;

-- name: tree
-- The tree that is tried again, locked: nobody else tries it, and a strict one is not counted meanwhile.
select id, tenant, strict, open, cancel_at from tree where id = $1 and ($2::int is null or tenant = $2) for update;

-- name: stage
-- What is to run again is collected here first; it is gone with the transaction.
create temp table restore (
    id bigint primary key, blocked_on int not null default 0, level int not null, cap_ms int not null, state smallint not null
) on commit drop;

-- name: known
-- How many tasks of the tree are on record, wherever they are: retention may have dropped some.
select count(*) from tree_part p join task_anywhere t on t.id between p.first and p.last where p.tree = $1;

-- name: collect
-- Everything that did not succeed and was not spared; $2: which final states. Asked again, what ended meanwhile.
insert into restore (id, level, cap_ms, state)
select t.id, t.level, t.cap_ms, t.state from tree_part p join task_anywhere t on t.id between p.first and p.last
where p.tree = $1 and t.state = any ($2::smallint[]) and (t.state <> 9 or t.error is null or t.error not like '{"type":"NotNeeded"%')
on conflict do nothing;

-- name: lock_dead
-- Those that failed, locked: who sends one of them again, or purges it, comes before or after us.
select d.id from dead_letter d where d.id in (select id from restore where state = 7) order by d.id for update;

-- name: forget_gone
-- Somebody else was faster with these.
delete from restore r where r.state = 7 and not exists (select 1 from dead_letter d where d.id = r.id);

-- name: lock_upstream
-- Tasks that are still to run and that those to restore wait for: locked, so that their end comes before or after us.
select t.id from task t where t.id in (select e.upstream from restore r join edge e on e.downstream = r.id) order by t.id for update;

-- name: lock_downstream
-- Tasks that still wait, and had their wish for one of those to restore: locked, so that they do not go on before it is withdrawn.
select t.id from task t where t.state = 0 and t.id in (select e.downstream from restore r join edge e on e.upstream = r.id where e.kind in (1, 2))
order by t.id for update;

-- name: wait_again
-- They wait for it again: its end will be counted again.
with hit as materialized (
    select e.downstream, count(*)::int as n from restore r join edge e on e.upstream = r.id
    where e.kind = 1 or (e.kind = 2 and r.state in (7, 10)) group by e.downstream order by e.downstream
)
update task t set blocked_on = t.blocked_on + hit.n from hit where t.id between hit.downstream and hit.downstream and t.blocked_on > 0;

-- name: refuse
-- Those whose wish still cannot come true, because of a task that is not tried again. Repeated until there are none.
delete from restore r where r.state in (8, 9) and exists (
    select 1 from edge e
    join lateral (
        select state from task_history h where h.id = e.upstream union all select state from dead_letter d where d.id = e.upstream
    ) u on true
    where e.downstream = r.id and not exists (select 1 from restore x where x.id = e.upstream)
        and not (e.kind = 1 or (e.kind = 0 and u.state = 6) or (e.kind = 2 and u.state in (7, 10)))
);

-- name: count
-- What each of them waits for: its edges to tasks that are still to run, its level if $1 says so (strict, above $2), and the hold of a `for_each`.
update restore r set blocked_on = (
    select count(*) from edge e where e.downstream = r.id and (
        exists (select 1 from restore x where x.id = e.upstream) or exists (select 1 from task t where t.id = e.upstream)
    )
) + ($1 and r.level > $2)::int + (r.cap_ms = 0)::int;

-- name: sums
select level, state, count(*)::int as count from restore group by level, state order by level, state;

-- name: span
select min(id) as first, max(id) as last from restore;

-- name: keep_attempts
-- The last attempt of each goes where the others are: the task's own row will tell of the next one.
insert into attempt (task, attempt, node, leased_at, started_at, ended_at, outcome, exit_code, error, cpu_ms, max_memory)
select t.id, t.attempt, t.node, t.leased_at, t.started_at, t.ended_at, t.outcome, t.exit_code, t.error, t.cpu_ms, t.max_memory
from restore r join task_anywhere t on t.id = r.id where t.attempt > 0 and t.outcome is not null
on conflict do nothing;

-- name: dead
-- Failed tasks come back: same id, the fence goes on rising, the counters of failures start over.
-- event: restore
with back as (delete from dead_letter d using restore r where d.id = r.id returning d.*, r.blocked_on)
insert into task (id, start_by, eligible_at, tree, size, tenant, definition, shape, cap_ms, attempt, level, state, blocked_on, category,
    has_dependants, name, labels, key, input)
select id, clock_timestamp() + (start_by - eligible_at), clock_timestamp(), tree, size, tenant, definition, shape, cap_ms, attempt, level,
    case when blocked_on > 0 then 0 else 2 end, blocked_on, category, has_dependants, name, labels, key, input
from back;

-- name: ended
-- Skipped, cancelled and expired ones come back out of history.
-- event: restore
with back as (delete from task_history h using restore r where h.id = r.id returning h.*, r.blocked_on)
insert into task (id, start_by, eligible_at, tree, size, tenant, definition, shape, cap_ms, attempt, level, state, blocked_on, category,
    has_dependants, name, labels, key, input)
select id, greatest(eligible_at, clock_timestamp()) + (start_by - eligible_at), greatest(eligible_at, clock_timestamp()), tree, size,
    tenant, definition, shape, cap_ms, attempt, level,
    case when blocked_on > 0 then 0 when eligible_at > clock_timestamp() then 1 else 2 end, blocked_on, category,
    exists (select 1 from edge e where e.upstream = back.id), name, labels, key, input
from back;

-- name: fans
-- Tasks that stand for many and wait for nothing else are due again.
update fanout f set due = true from restore r where f.task = r.id and r.cap_ms = 0 and r.blocked_on = 1;

-- name: ready
-- The first of them in the order of each group: enough for the planner to look for itself.
select t.id, t.tenant, t.shape, t.start_by, t.cap_ms, t.state from restore r join task t on t.id = r.id where t.state = 2
order by t.start_by, t.cap_ms, t.id limit $1;

-- name: begin
-- The tree is no longer to be cancelled; what may run of a strict one starts at level $2 if it is given.
update tree set cancel_at = null, open = coalesce($2, open) where id = $1;

-- name: lowest
select min(level) from restore;

-- name: tell
insert into event (tenant, kind, tasks, data) values ($1, 'tree.retried', array[$2::bigint], $3);

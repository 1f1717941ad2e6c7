-- name: exists
select exists (select 1 from task where id = any ($1::bigint[]))
    or exists (select 1 from task_history where id = any ($1::bigint[]))
    or exists (select 1 from dead_letter where id = any ($1::bigint[]));

-- name: one
-- Tasks by id, wherever they are; a tenant's own only, unless $2 is null (an administrator).
select t.*, d.body, d.name as definition_name, p.done, p.total, p.text, n.name as node_name, w.name as tenant_name, h.hold_at
from task_anywhere t
left join task h on h.id = t.id
join definition d on d.id = t.definition
join tenant w on w.id = t.tenant
left join progress p on p.task = t.id
left join node n on n.id = t.node
where t.id = any ($1::bigint[]) and ($2::int is null or t.tenant = $2);

-- name: final
-- Those of the given tasks that have ended, of this tenant.
select id from task_history where id = any ($1::bigint[]) and ($2::int is null or tenant = $2)
union all
select id from dead_letter where id = any ($1::bigint[]) and ($2::int is null or tenant = $2);

-- name: known
-- Those of the given tasks that there are, of this tenant. (Not the view: each part is read by its index.)
select id from task where id = any ($1::bigint[]) and ($2::int is null or tenant = $2)
union all
select id from task_history where id = any ($1::bigint[]) and ($2::int is null or tenant = $2)
union all
select id from dead_letter where id = any ($1::bigint[]) and ($2::int is null or tenant = $2);

-- name: attempts
select attempt, outcome, node, leased_at, started_at, ended_at, exit_code, error, cpu_ms, max_memory from attempt where task = $1
order by attempt;

-- name: dead_count
select count(*)::int from dead_letter;

-- name: dead_groups
select d.fingerprint, min(coalesce(d.name, f.name)) as name, min(d.error) as error, count(*)::int as count,
    min(d.ended_at) as first_at, max(d.ended_at) as last_at, max(d.id) as example
from dead_letter d join definition f on f.id = d.definition
where ($1::int is null or d.tenant = $1) group by d.fingerprint order by count(*) desc limit $2;

-- name: dead_ids
select d.id from dead_letter d join definition f on f.id = d.definition
where ($1::int is null or d.tenant = $1) and ($2::bigint[] is null or d.id = any ($2::bigint[]))
    and ($3::text is null or d.fingerprint = $3) and ($4::text is null or coalesce(d.name, f.name) = $4)
order by d.id limit $5;

-- name: purge
-- Purged dead letters go to history as cancelled: every task keeps exactly one final row.
with gone as (delete from dead_letter where id = any ($1::bigint[]) and ($2::int is null or tenant = $2) returning *)
insert into task_history (id, start_by, eligible_at, leased_at, started_at, ended_at, tree, size, max_memory, tenant, definition,
    shape, cap_ms, attempt, node, level, exit_code, cpu_ms, state, category, outcome, failures, resource_failures, node_losses,
    requeues, name, labels, key, error, input)
select id, start_by, eligible_at, leased_at, started_at, ended_at, tree, size, max_memory, tenant, definition, shape, cap_ms, attempt,
    node, level, exit_code, cpu_ms, 8, category, outcome, failures, resource_failures, node_losses, requeues, name, labels, key,
    error, input
from gone returning id, tree, level;

-- name: dead_rows
select id, tenant, definition from dead_letter where id = any ($1::bigint[]) and ($2::int is null or tenant = $2) order by id for update;

-- name: events
-- Facts after a cursor, below the oldest running transaction: nothing can appear before what was read.
select e.xid::text as xid, e.seq, e.at, e.kind, e.tasks, e.data, w.name as tenant, e.tenant as tenant_id from event e left join tenant w on w.id = e.tenant
where (e.xid, e.seq) > ($1::text::xid8, $2) and e.xid < pg_snapshot_xmin(pg_current_snapshot())
    and ($3::int is null or e.tenant = $3) and ($5::text[] is null or e.kind = any ($5))
order by e.xid, e.seq limit $4;

-- name: event_since
-- The cursor just before the first fact after a moment; null when there is none.
select xid::text as xid, seq - 1 as seq from event where at >= clock_timestamp() - $1 * interval '1 second' order by xid, seq limit 1;

-- name: event_resume
-- The transaction to go on from. One that this PostgreSQL has not begun is of another one, from which the database came as a dump: its
-- events are those of the first transaction now (event.renumber), with the sequence they had.
select case when $1::text::xid8 >= pg_snapshot_xmax(pg_current_snapshot()) then '3' else $1::text end;

-- name: event_end
-- The cursor of now: just below the oldest running transaction.
select (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text as xid;

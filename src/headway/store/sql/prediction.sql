-- name: news
-- Ends of tasks since the sample was last fed, oldest first, below the oldest running transaction; some tasks of each.
select e.xid::text as xid, e.seq, e.tasks[1:$2] as tasks from event e, run_sample_cursor c
where (e.xid, e.seq) > (c.xid, c.seq) and e.xid < pg_snapshot_xmin(pg_current_snapshot()) and e.kind = 'task.succeeded'
order by e.xid, e.seq limit $1;

-- name: move_on
update run_sample_cursor set xid = $1::text::xid8, seq = $2;

-- name: skip_ahead
-- More ended than a sample needs: go on from now.
update run_sample_cursor set xid = (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8, seq = 9223372036854775807;

-- name: finished
select h.id, h.tenant, h.definition, extract(epoch from h.ended_at - h.started_at)::float8 as seconds, h.size, h.max_memory, h.node,
    coalesce(h.name, d.name) as name
from task_history h join definition d on d.id = h.definition
where h.id = any ($1::bigint[]) and h.state = 6 and h.started_at is not null and h.ended_at >= h.started_at;

-- name: keep
insert into run_sample (work, task, tenant, seconds, size, max_memory, node, name)
select * from unnest($1::bigint[], $2::bigint[], $3::int[], $4::float8[], $5::float8[], $6::bigint[], $7::int[], $8::text[])
on conflict do nothing;

-- name: trim
-- Only the latest runs of each kind of work are kept.
delete from run_sample s using (
    select work, task from (
        select work, task, row_number() over (partition by work order by task desc) as n from run_sample where work = any ($1::bigint[])
    ) r where n > $2
) old
where s.work = old.work and s.task = old.task;

-- name: runs_of_work
-- The latest runs of each of these kinds of work.
select w.work, s.seconds, s.size, s.node, s.max_memory from unnest($1::bigint[]) as w (work)
cross join lateral (select seconds, size, node, max_memory from run_sample where work = w.work order by task desc limit $2) s;

-- name: runs_of_names
-- The latest runs of tasks of these names, for what was never run in just this way.
select w.name, s.seconds, s.size, s.node, s.max_memory from unnest($2::text[]) as w (name)
cross join lateral (
    select seconds, size, node, max_memory from run_sample where tenant = $1 and name = w.name order by task desc limit $3
) s;

-- name: to_check
-- Schedules that fired since their length was last compared with their interval, or that failed the comparison.
select id, tenant, name, spec, body, definitions, problem from schedule
where paused_at is null and next_at is not null and (last_at > checked_at or problem is not null)
    and checked_at < clock_timestamp() - $1::float8 * interval '1 second'
order by checked_at limit $2;

-- name: checked
update schedule set problem = $2, checked_at = clock_timestamp() where id = $1 and paused_at is null;

-- name: keep
-- What an attempt wrote, from the node that has it or had it: an agent cannot write into another's tasks.
insert into output (task, attempt, sequence, stream, at, data)
select r.task, r.attempt, r.sequence, r.stream, 'epoch'::timestamptz + r.at_ms * interval '1 millisecond', r.data
from unnest($1::bigint[], $2::int[], $3::int[], $4::smallint[], $5::bigint[], $6::bytea[], $7::int[])
    as r (task, attempt, sequence, stream, at_ms, data, node)
where (
        exists (select 1 from task t where t.id = r.task and t.attempt = r.attempt and +t.node = r.node)
        or exists (select 1 from task_history t where t.id = r.task and t.attempt = r.attempt and t.node = r.node)
        or exists (select 1 from dead_letter t where t.id = r.task and t.attempt = r.attempt and t.node = r.node)
        or exists (select 1 from attempt t where t.task = r.task and t.attempt = r.attempt and t.node = r.node)
    )
on conflict do nothing;

-- name: read
select attempt, sequence, stream, at, data from output
where task = $1 and (attempt, sequence) > ($2, $3) and ($4::int is null or attempt = $4) and ($5::smallint is null or stream = $5)
order by attempt, sequence limit $6;

-- name: progress
insert into progress (task, attempt, done, total, text)
select r.task, r.attempt, r.done, r.total, r.text
from unnest($1::bigint[], $2::int[], $3::float8[], $4::float8[], $5::text[], $6::int[]) as r (task, attempt, done, total, text, node)
where (
        exists (select 1 from task t where t.id = r.task and t.attempt = r.attempt and +t.node = r.node)
        or exists (select 1 from task_history t where t.id = r.task and t.attempt = r.attempt and t.node = r.node)
        or exists (select 1 from dead_letter t where t.id = r.task and t.attempt = r.attempt and t.node = r.node)
        or exists (select 1 from attempt t where t.task = r.task and t.attempt = r.attempt and t.node = r.node)
    )
on conflict (task) do update set attempt = excluded.attempt, done = excluded.done, total = excluded.total, text = excluded.text
where progress.attempt <= excluded.attempt;

-- name: progress_of
select task, done, total, text from progress where task = any ($1::bigint[]);

-- name: forget_progress
delete from progress p where not exists (select 1 from task where id = p.task);

-- name: keep
insert into output (task, attempt, sequence, stream, at, data)
select r.task, r.attempt, r.sequence, r.stream, 'epoch'::timestamptz + r.at_ms * interval '1 millisecond', r.data
from unnest($1::bigint[], $2::int[], $3::int[], $4::smallint[], $5::bigint[], $6::bytea[])
    as r (task, attempt, sequence, stream, at_ms, data)
on conflict do nothing;

-- name: read
select attempt, sequence, stream, at, data from output
where task = $1 and (attempt, sequence) > ($2, $3) and ($4::int is null or attempt = $4) and ($5::smallint is null or stream = $5)
order by attempt, sequence limit $6;

-- name: progress
insert into progress (task, attempt, done, total, text)
select * from unnest($1::bigint[], $2::int[], $3::float8[], $4::float8[], $5::text[])
on conflict (task) do update set attempt = excluded.attempt, done = excluded.done, total = excluded.total, text = excluded.text
where progress.attempt <= excluded.attempt;

-- name: progress_of
select task, done, total, text from progress where task = any ($1::bigint[]);

-- name: forget_progress
delete from progress p where not exists (select 1 from task where id = p.task);

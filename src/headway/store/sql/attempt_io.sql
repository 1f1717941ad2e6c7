-- name: keep
insert into attempt_io (task, attempt, read_bytes, written_bytes)
select * from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[])
on conflict do nothing;

-- name: of_task
-- By attempt. The caller has seen that the task is the tenant's.
select attempt, read_bytes, written_bytes from attempt_io where task = $1;

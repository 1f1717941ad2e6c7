-- Facts for streams and webhooks, written in the transaction of what they tell.

-- name: tell
-- Tasks of one kind of event, a row for each tenant.
insert into event (tenant, kind, tasks)
select tenant, $1, array_agg(id order by id) from unnest($2::bigint[], $3::int[]) as r (id, tenant) group by tenant;

-- name: tell_each
-- Events that say something about each task.
insert into event (tenant, kind, tasks, data)
select r.tenant, r.kind, array[r.id], r.data from unnest($1::int[], $2::text[], $3::bigint[], $4::text[]) as r (tenant, kind, id, data);

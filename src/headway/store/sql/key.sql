-- name: claim
-- Idempotency keys, sorted: those returned are new, the rest exist already. Waits for a concurrent claim of the same key.
insert into idempotency_key (tenant, key, hash, task)
select * from unnest($1::int[], $2::text[], $3::bytea[], $4::bigint[])
on conflict do nothing
returning tenant, key;

-- name: existing
select k.tenant, k.key, k.hash, k.task from idempotency_key k
join unnest($1::int[], $2::text[]) as r (tenant, key) on k.tenant = r.tenant and k.key = r.key;

-- name: unclaim
delete from idempotency_key k using unnest($1::int[], $2::text[], $3::bigint[]) as r (tenant, key, task)
where k.tenant = r.tenant and k.key = r.key and k.task = r.task;

-- name: expire
-- Keys whose task, or tree, ended a day ago: they may be used again.
with old as (
    select k.tenant, k.key from idempotency_key k
    where k.task < $1 and not exists (select 1 from task where id = k.task)
        and not exists (select 1 from dead_letter where id = k.task)
        and not exists (select 1 from task_history h where h.id = k.task and h.ended_at > clock_timestamp() - interval '24 hours')
        and not exists (select 1 from tree_going where tree = k.task)
        and not exists (select 1 from tree_level l where l.tree = k.task and l.last_at > clock_timestamp() - interval '24 hours')
    order by k.task limit $2
)
delete from idempotency_key k using old where k.tenant = old.tenant and k.key = old.key;

-- name: begin
-- Written before the deed. It need not wait for the disk: the deed commits later, and its flush covers this row.
with relaxed as materialized (select set_config('synchronous_commit', 'off', true))
insert into audit (role, actor, tenant, action, target) select $1, $2, $3, $4, $5 from relaxed returning id;

-- name: tell
-- What was changed, in the transaction that changes it.
update audit set target = $2, tenant = coalesce($3, tenant), before = $4::jsonb, after = $5::jsonb where id = $1;

-- name: end
with relaxed as materialized (select set_config('synchronous_commit', 'off', true))
update audit set result = $2 from relaxed where id = $1;

-- name: page
-- The newest first; a tenant's own only, unless $1 is null.
select a.id, a.at, a.role, a.actor, w.name as tenant, a.action, a.target, a.result, a.before::text as before, a.after::text as after
from audit a left join tenant w on w.id = a.tenant
where ($1::int is null or a.tenant = $1) and a.id < $2 and ($3::text is null or a.actor like $3) and ($4::text is null or a.action like $4)
    and ($5::text is null or a.target = $5) and ($6::timestamptz is null or a.at >= $6)
order by a.id desc limit $7;

-- name: forget
delete from audit where id in (select id from audit where at < clock_timestamp() - $1 * interval '1 day' order by id limit 10000);

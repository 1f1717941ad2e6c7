-- name: add
insert into token (hash, role, tenant, name) values ($1, $2, $3, $4) on conflict (hash) do nothing;

-- name: find
-- With the seconds each has left: none or less when it has expired, null when it never does.
select t.hash, t.id, t.name, t.role, t.tenant, n.name as tenant_name,
    extract(epoch from t.expires_at - clock_timestamp())::float8 as left_s
from token t left join tenant n on n.id = t.tenant
where t.hash = any ($1::bytea[]) and t.revoked_at is null and n.removed_at is null;

-- name: create
-- A key: its hash, never itself. $5: seconds until it expires.
insert into token (hash, role, tenant, name, expires_at)
values ($1, $2, $3, $4, clock_timestamp() + $5::float8 * interval '1 second') returning id, created_at, expires_at;

-- name: has_admin
-- Whether somebody can administer this Headway.
select exists (select from token where role = 'admin' and revoked_at is null and coalesce(expires_at > clock_timestamp(), true));

-- name: list
-- Keys, the newest first; a tenant's own only, unless $1 is null.
select t.id, t.role, n.name as tenant, t.name, t.created_at, t.expires_at, t.revoked_at
from token t left join tenant n on n.id = t.tenant
where ($1::int is null or t.tenant = $1) and t.id < $2 order by t.id desc limit $3;

-- name: revoke
-- At once here, within seconds elsewhere. Nothing comes back for a key that is not there, or not the tenant's.
update token t set revoked_at = coalesce(revoked_at, clock_timestamp()) where id = $1 and ($2::int is null or tenant = $2)
returning id, role, name, tenant, created_at, expires_at, revoked_at,
    (select n.name from tenant n where n.id = t.tenant) as tenant_name;

-- name: add_tenant
with new as (insert into tenant (name) values ($1) on conflict (name) do nothing returning id)
select id, true as created from new union all select id, false from tenant where name = $1 limit 1;

-- name: add
insert into token (hash, role, tenant, name) values ($1, $2, $3, $4) on conflict (hash) do nothing;

-- name: find
select t.role, t.tenant, n.name as tenant_name from token t left join tenant n on n.id = t.tenant
where t.hash = $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > clock_timestamp());

-- name: add_tenant
with new as (insert into tenant (name) values ($1) on conflict (name) do nothing returning id)
select id, true as created from new union all select id, false from tenant where name = $1 limit 1;

-- name: tenants
select id, name from tenant order by id;

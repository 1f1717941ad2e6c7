-- name: changes
-- Tenants whose subscription changed since, with a margin for transactions that committed late.
select id, name, subscription::text as subscription, changed_at from tenant where changed_at > $1::timestamptz - interval '30 seconds';

-- name: tier_changes
select tenant, name, resources::text as resources, changed_at from tier where changed_at > $1::timestamptz - interval '30 seconds';

-- name: create
insert into tenant (name, subscription) values ($1, $2::jsonb) on conflict (name) do nothing returning id, created_at;

-- name: lock
select id, name, subscription::text as subscription, created_at from tenant where id = $1 for update;

-- name: set
update tenant set subscription = $2::jsonb, changed_at = clock_timestamp() where id = $1;

-- name: page
-- Tenants by name, a page at a time; one's own only, unless $1 is null.
select id, name, subscription::text as subscription, created_at from tenant
where ($1::int is null or id = $1) and name > $2 order by name limit $3;

-- name: find
select id from tenant where name = $1;

-- name: tier_of
select resources::text as resources from tier where tenant is not distinct from $1::int and name = $2 for update;

-- name: set_tier
insert into tier (tenant, name, resources) values ($1, $2, $3::jsonb)
on conflict (tenant, name) do update set resources = excluded.resources, changed_at = clock_timestamp();

-- name: changes
-- Tenants whose subscription changed since, with a margin for transactions that committed late.
select id, name, subscription::text as subscription, changed_at, removed_at is not null as removed from tenant where changed_at > $1::timestamptz - interval '30 seconds';

-- name: tier_changes
select tenant, name, resources::text as resources, changed_at from tier where changed_at > $1::timestamptz - interval '30 seconds';

-- name: create
insert into tenant (name, subscription) values ($1, $2::jsonb) on conflict (name) do nothing returning id, created_at;

-- name: lock
-- Nobody else changes it meanwhile; who stores something that refers to it need not wait.
select id, name, subscription::text as subscription, created_at from tenant where id = $1 for no key update;

-- name: set
-- One that was removed meanwhile stays as it was left.
update tenant set subscription = $2::jsonb, changed_at = clock_timestamp() where id = $1 and removed_at is null returning id;

-- name: page
-- Tenants by name, a page at a time; one's own only, unless $1 is null.
select id, name, subscription::text as subscription, created_at from tenant
where ($1::int is null or id = $1) and name > $2 and removed_at is null order by name limit $3;

-- name: find
select id from tenant where name = $1 and removed_at is null;

-- name: removed_at
-- Since when a name is that of a tenant that was removed.
select removed_at from tenant where name = $1;

-- name: remove
-- From now on it takes nothing in and nobody finds it.
update tenant set subscription = $2::jsonb, removed_at = clock_timestamp(), changed_at = clock_timestamp()
where id = $1 and removed_at is null returning removed_at;

-- name: revoke_keys
update token set revoked_at = clock_timestamp() where tenant = $1 and revoked_at is null;

-- name: drop_schedules
delete from schedule where tenant = $1;

-- name: drop_secrets
delete from secret where tenant = $1;

-- name: drop_tiers
delete from tier where tenant = $1;

-- name: drop_pins
delete from url_pin where tenant = $1;

-- name: drop_samples
-- What its runs foretold.
delete from run_sample where tenant = $1;

-- name: live
-- Tasks of a tenant that have not ended, up to $2 of each kind; whether a node has them, and whether they are being cancelled.
(select id, false as held, false as ending from task where tenant = $1 and state = 2 limit $2)
union all (select id, false, false from task where state in (0, 1) and tenant = $1 and state - 2 < 0 limit $2)
union all (select id, false, false from task where state = 5 and node is null and tenant = $1 limit $2)
union all (select id, true, cancel_at is not null from task where state in (3, 4, 5) and node is not null and tenant = $1 limit $2);

-- name: old_dead_letters
select id from dead_letter where tenant = $1 and id < $2 limit $3;

-- name: unswept
-- Tenants that were removed and of which something may be left; for how many seconds.
select id, name, extract(epoch from clock_timestamp() - removed_at)::float8 as since_s from tenant
where removed_at is not null and swept_at is null order by removed_at limit $1;

-- name: swept
update tenant set swept_at = clock_timestamp()
where id = $1 and removed_at is not null and not exists (select 1 from dead_letter where tenant = $1);

-- name: tier_of
select resources::text as resources from tier where tenant is not distinct from $1::int and name = $2 for update;

-- name: set_tier
insert into tier (tenant, name, resources) values ($1, $2, $3::jsonb)
on conflict (tenant, name) do update set resources = excluded.resources, changed_at = clock_timestamp();

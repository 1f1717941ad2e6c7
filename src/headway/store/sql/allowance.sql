-- name: lock
-- Buckets of tenants, locked in order, and the moment, looked up once the locks are ours: one from before would let time flow twice.
with mine as materialized (select tenant, tokens, at, held from allowance where tenant = any ($1::int[]) order by tenant for update)
select tenant, tokens, extract(epoch from at)::float8 as at, held::text as held, extract(epoch from clock_timestamp())::float8 as now from mine;

-- name: begin
insert into allowance (tenant, tokens, at) select tenant, tokens, clock_timestamp() from unnest($1::int[], $2::float8[]) n (tenant, tokens)
order by tenant on conflict (tenant) do nothing;

-- name: keep
update allowance a set tokens = r.tokens, at = to_timestamp(r.at), held = r.held::jsonb
from unnest($1::int[], $2::float8[], $3::float8[], $4::text[]) as r (tenant, tokens, at, held) where a.tenant = r.tenant;

-- name: waiting
-- How many tasks of each tenant no node holds, counted up to its `most`: more is as good as full.
select w.tenant, (select count(*) from (select 1 from task where tenant = w.tenant and state = 2 limit w.most) r)
    + (select count(*) from (select 1 from task where state in (0, 1) and tenant = w.tenant and state - 2 < 0 limit w.most) b) as count
from unnest($1::int[], $2::bigint[]) w (tenant, most);

-- name: used
-- What a tenant uses now: tasks by state (up to $2 of each), and the shapes of those on nodes.
select state, shape, count(*) as count from (
    (select state, shape from task where tenant = $1 and state = 2 limit $2)
    union all (select state, shape from task where state in (0, 1) and tenant = $1 and state - 2 < 0 limit $2)
    union all (select state, shape from task where state in (3, 4, 5) and tenant = $1 limit $2)
) t group by state, shape;

-- name: dead
select count(*)::int from (select 1 from dead_letter where tenant = $1 limit $2) d;

-- name: ready
-- Ready tasks of each tenant, counted up to $2.
select w.tenant, (select count(*)::int from (select 1 from task where tenant = w.tenant and state = 2 limit $2) r) as count
from unnest($1::int[]) w (tenant);

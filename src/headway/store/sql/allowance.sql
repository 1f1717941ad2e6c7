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
    + (select count(*) from (select 1 from task where state in (0, 1) and tenant = w.tenant and state - 2 < 0 limit w.most) b)
    + (select count(*) from (select 1 from task where state = 5 and node is null and tenant = w.tenant limit w.most) p) as count
from unnest($1::int[], $2::bigint[]) w (tenant, most);

-- name: used
-- What a tenant uses now: its tasks that wait and those on nodes, by shape (up to $2 of each kind).
select held, shape, count(*) as count from (
    (select false as held, shape from task where tenant = $1 and state = 2 limit $2)
    union all (select false, shape from task where state in (0, 1) and tenant = $1 and state - 2 < 0 limit $2)
    union all (select false, shape from task where state = 5 and node is null and tenant = $1 limit $2)
    union all (select true, shape from task where state in (3, 4, 5) and node is not null and tenant = $1 limit $2)
) t group by held, shape;

-- name: dead
select count(*)::int from (select 1 from dead_letter where tenant = $1 limit $2) d;

-- name: ready
-- Ready tasks of each tenant without those of the shapes $3, each shape counted up to $2 by the ready index alone.
select w.tenant, (
    with recursive found as (
        (select shape from task where state = 2 and tenant = w.tenant order by shape limit 1)
        union all
        select next.shape from found cross join lateral (
            select shape from task where state = 2 and tenant = w.tenant and shape > found.shape order by shape limit 1
        ) next
    )
    select coalesce(sum(of_shape.count), 0)::int from found f cross join lateral (
        select count(*) from (select 1 from task where state = 2 and tenant = w.tenant and shape = f.shape limit $2) r
    ) of_shape where f.shape <> all ($3::int[])
) as count
from unnest($1::int[]) w (tenant);

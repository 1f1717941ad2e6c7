-- Interning need not wait for the disk: a task that uses the row commits later, and its flush covers everything before it.

-- name: shape
with relaxed as materialized (select set_config('synchronous_commit', 'off', true)), new as (
    insert into shape (hash, resources, rules) select $1, $2::jsonb, $3::jsonb from relaxed on conflict (hash) do nothing returning id
)
select id from new union all select id from shape where hash = $1 limit 1;

-- name: intern
with relaxed as materialized (select set_config('synchronous_commit', 'off', true)), new as (
    insert into definition (tenant, hash, shape, name, body) select $1, $2, $3, $4, $5 from relaxed
    on conflict (tenant, hash) do nothing returning id
)
select id from new union all select id from definition where tenant = $1 and hash = $2 limit 1;

-- name: intern_many
-- Several of one tenant; $2 to $5 are their columns. In the order of their hashes: two servers never wait for each other. One that somebody
-- else stores at this moment may be missing, and is there for the next statement.
with relaxed as materialized (select set_config('synchronous_commit', 'off', true)), new as (
    insert into definition (tenant, hash, shape, name, body)
    select $1, u.hash, u.shape, u.name, u.body
    from relaxed, unnest($2::bytea[], $3::int[], $4::text[], $5::text[]) as u (hash, shape, name, body)
    order by u.hash on conflict (tenant, hash) do nothing returning hash, id
)
select hash, id from new union all select hash, id from definition where tenant = $1 and hash = any ($2::bytea[]);

-- name: by_id
select id, tenant, shape, name, body from definition where id = any ($1::int[]);

-- name: shapes
select id, resources::text as resources, rules::text as rules from shape where id = any ($1::int[]);

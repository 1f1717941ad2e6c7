-- name: shape
with new as (insert into shape (hash, resources) values ($1, $2::jsonb) on conflict (hash) do nothing returning id)
select id from new union all select id from shape where hash = $1 limit 1;

-- name: intern
with new as (
    insert into definition (tenant, hash, shape, name, body) values ($1, $2, $3, $4, $5) on conflict (tenant, hash) do nothing returning id
)
select id from new union all select id from definition where tenant = $1 and hash = $2 limit 1;

-- name: by_id
select id, tenant, shape, name, body from definition where id = any ($1::int[]);

-- name: shapes
select id, resources::text as resources from shape where id = any ($1::int[]);

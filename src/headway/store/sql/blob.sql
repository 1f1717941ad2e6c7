-- name: begin
-- Makes room for content, or touches it: what was just asked for is not swept away.
insert into blob (tenant, hash, size) values ($1, $2, $3)
on conflict (tenant, hash) do update set touched_at = clock_timestamp()
returning size, complete;

-- name: put_chunk
insert into blob_chunk (tenant, hash, number, data) values ($1, $2, $3, $4) on conflict do nothing;

-- name: get
select size, complete from blob where tenant = $1 and hash = $2;

-- name: chunk
select data from blob_chunk where tenant = $1 and hash = $2 and number = $3;

-- name: count_chunks
select count(*)::int from blob_chunk where tenant = $1 and hash = $2;

-- name: complete
update blob set complete = true, touched_at = clock_timestamp() where tenant = $1 and hash = $2;

-- name: discard
-- Content that is not what its hash says, and that nobody holds.
delete from blob b where b.tenant = $1 and b.hash = $2 and not exists (
    select 1 from blob_use u where u.tenant = b.tenant and u.hash = b.hash
);

-- name: use
insert into blob_use (tenant, hash, holder)
select b.tenant, b.hash, $3 from blob b where b.tenant = $1 and b.hash = $2 and b.complete for key share
on conflict do nothing;

-- name: used
select exists (select 1 from blob_use where tenant = $1 and hash = $2 and holder = $3);

-- name: release
delete from blob_use where holder = any ($1::text[]);

-- name: remove
-- What was just released and nobody else holds. What somebody touched in the last seconds may be about to be held: the sweep sees to it.
delete from blob b using unnest($1::int[], $2::bytea[]) as r (tenant, hash)
where b.tenant = r.tenant and b.hash = r.hash and b.touched_at < clock_timestamp() - interval '5 seconds'
    and not exists (select 1 from blob_use u where u.tenant = b.tenant and u.hash = b.hash);

-- name: sweep
-- What nobody needs and nobody has touched for $1 seconds.
with gone as (
    select tenant, hash from blob b
    where touched_at < clock_timestamp() - $1 * interval '1 second'
        and not exists (select 1 from blob_use u where u.tenant = b.tenant and u.hash = b.hash)
    order by touched_at limit $2 for update skip locked
)
delete from blob b using gone where b.tenant = gone.tenant and b.hash = gone.hash
    and not exists (select 1 from blob_use u where u.tenant = b.tenant and u.hash = b.hash);

-- name: put
insert into secret (tenant, name, key_id, nonce, sealed) values ($1, $2, $3, $4, $5)
on conflict (tenant, name) do update
set key_id = excluded.key_id, nonce = excluded.nonce, sealed = excluded.sealed, changed_at = clock_timestamp();

-- name: get
select name, key_id, nonce, sealed from secret where tenant = $1 and name = any ($2::text[]);

-- name: list
-- Names only: a value never leaves by this way.
select name, changed_at from secret where tenant = $1 order by name;

-- name: remove
delete from secret where tenant = $1 and name = $2 returning name;

-- name: of_definitions
-- The sealed secrets that these definitions name.
select d.id as definition, d.tenant, s.name, s.key_id, s.nonce, s.sealed
from unnest($1::int[], $2::text[]) as wanted (definition, name)
join definition d on d.id = wanted.definition
join secret s on s.tenant = d.tenant and s.name = wanted.name;

-- name: owner
-- The tenant of a definition.
select tenant from definition where id = $1;

-- name: pin
insert into url_pin (tenant, url, sha256) values ($1, $2, $3) on conflict do nothing;

-- name: pinned
select sha256 from url_pin where tenant = $1 and url = $2;

-- name: pins
select url, sha256, pinned_at from url_pin where tenant = $1 order by url limit 1000;

-- name: unpin
delete from url_pin where tenant = $1 and url = $2 returning url;

-- name: running
-- The attempt that calls, if it is the one that runs. The lock makes its end wait for our commit.
select tenant from task where id = $1 and attempt = $2 and node is not null and state in (3, 4, 5) for share;

-- name: claim
insert into once_claim (tenant, key, task, attempt) values ($1, $2, $3, $4) on conflict do nothing returning key;

-- name: read
select task, attempt, done_at, value from once_claim where tenant = $1 and key = $2 for update;

-- name: take_over
-- A later attempt of the same task takes the claim of an earlier one that never said how it went.
update once_claim set attempt = $4, claimed_at = clock_timestamp() where tenant = $1 and key = $2 and task = $3 and attempt < $4
    and done_at is null
returning key;

-- name: done
update once_claim set done_at = clock_timestamp(), value = $5
where tenant = $1 and key = $2 and task = $3 and attempt = $4 and done_at is null
returning key;

-- name: release
-- It did not happen: the next attempt may try.
delete from once_claim where tenant = $1 and key = $2 and task = $3 and attempt = $4 and done_at is null returning key;

-- name: forget
-- Claims whose retention is over.
delete from once_claim where claimed_at < clock_timestamp() - $1::float8 * interval '1 day';

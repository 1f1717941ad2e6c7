-- name: take
-- Renews one's own leases, and leads duties whose lease has run out. A takeover raises the epoch, which fences the former leader. Fences lock
-- the key of the row only: a renewal waits for none of them, and a takeover passes over a duty whose former leader has a commit under way.
with lapsed as materialized (
    select name from duty where name = any ($1::text[]) and expires_at <= clock_timestamp() for update skip locked
)
update duty d
set holder = $2, epoch = d.epoch + case when l.name is null then 0 else 1 end, expires_at = clock_timestamp() + $3 * interval '1 second'
from unnest($1::text[]) as w (name) left join lapsed l on l.name = w.name
where d.name = w.name and (l.name is not null or d.holder = $2 and d.expires_at > clock_timestamp())
returning d.name, d.epoch;

-- name: hand_on
-- Gives duties up at once, so that another server leads without waiting for the lease to run out.
update duty set expires_at = '-infinity' where holder = $1 returning name;

-- name: leaders
select name, holder, epoch, expires_at > clock_timestamp() as live from duty order by name;

-- name: fence
-- The first statement of every transaction of a duty: locks the key of its row, so that a takeover comes after our commit or we see it.
select 1 from duty where name = $1 and epoch = $2 and expires_at > clock_timestamp() for key share;

-- name: claim_number
-- A submitter number that nobody holds, with milliseconds reserved behind all earlier ones (a second at least, should the clock have
-- been set back).
with free as (
    select number, until_ms from id_number where held_until < clock_timestamp() order by number limit 1 for update skip locked
)
update id_number n
set holder = $1, held_until = clock_timestamp() + $3 * interval '1 millisecond',
    until_ms = greatest(free.until_ms + 1000, (extract(epoch from clock_timestamp()) * 1000)::bigint + $2)
from free where n.number = free.number
returning n.number, free.until_ms as after_ms, n.until_ms;

-- name: add_number
insert into id_number (number, until_ms, holder, held_until)
select coalesce(max(number) + 1, 0), 0, '', '-infinity' from id_number having coalesce(max(number) + 1, 0) < 1024
on conflict do nothing;

-- name: reserve
-- More milliseconds for a number; never overlapping an earlier reservation, whoever made it.
with old as (select until_ms from id_number where number = $1 and holder = $4 for update)
update id_number n
set until_ms = greatest(old.until_ms + 1000, (extract(epoch from clock_timestamp()) * 1000)::bigint + $2),
    held_until = clock_timestamp() + $3 * interval '1 millisecond'
from old where n.number = $1
returning old.until_ms as after_ms, n.until_ms;

-- name: release_number
-- A server that ends in order gives back what it did not use, so that its successor's ids do not run ahead of the clock.
update id_number set held_until = '-infinity', until_ms = $3 where number = $1 and holder = $2;

-- name: clock
select (extract(epoch from clock_timestamp()) * 1000000)::bigint;

-- name: server_alive
insert into server (boot, name, url, number, version, alone) values ($1, $2, $3, $4, $5, $6)
on conflict (boot) do update set seen_at = clock_timestamp(), alone = excluded.alone, url = excluded.url;

-- name: holders
-- Servers that went silent while they believed to be the only one: their agents may have been told to hold on for $2 seconds. (Silent: not
-- seen for $3.)
select boot, name, url from server
where boot <> $1 and alone and seen_at between clock_timestamp() - $2 * interval '1 second' and clock_timestamp() - $3 * interval '1 second';

-- name: server_gone
delete from server where boot = $1 or seen_at < clock_timestamp() - interval '5 minutes';

-- name: servers
select boot, name, url from server where seen_at > clock_timestamp() - interval '10 seconds';

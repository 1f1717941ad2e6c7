-- name: holder
-- Whose attempt this is, if its node still answers for it, and the key its token is made with.
select t.tenant, w.name as tenant_name, t.definition, n.task_key from task t join node n on n.id = t.node join tenant w on w.id = t.tenant
where t.id = $1 and t.attempt = $2 and t.state in (3, 4, 5);

-- name: parent
-- The running parent of new subtasks. The lock makes its finish and its cancelling wait for our commit.
select tree, level, cancel_at is not null as cancelling from task
where id = $1 and attempt = $2 and node is not null and state in (3, 4, 5) for share;

-- name: claim
-- New subtasks under their keys; a key that is taken gives no row back.
insert into subtask (parent, attempt, child, key, hash)
select $1, $2, c.child, c.key, c.hash from unnest($3::bigint[], $4::text[], $5::bytea[]) as c (child, key, hash) order by c.key
on conflict do nothing
returning key;

-- name: claimed
-- What is there under these keys. One that did not succeed is replaced when its parent has failed since.
select s.key, s.child, s.hash, s.stale
    and not exists (select 1 from task t where t.id = s.child)
    and not exists (select 1 from task_history h where h.id = s.child and h.state = 6) as replaceable
from subtask s where s.parent = $1 and s.key = any ($2::text[]) order by s.key for update;

-- name: keep
update subtask set stale = false where parent = $1 and key = any ($2::text[]) and stale;

-- name: replace
update subtask s set child = r.child, hash = r.hash, attempt = $2, stale = false
from unnest($3::bigint[], $4::text[], $5::bytea[]) as r (child, key, hash) where s.parent = $1 and s.key = r.key;

-- name: mark_stale
-- These parents have failed: of their subtasks, those that did not succeed are submitted anew by the next attempt.
update subtask set stale = true where parent = any ($1::bigint[]) and not stale;

-- name: below
-- The live subtasks of these tasks, and theirs, and so on.
with recursive down as (
    select child from subtask where parent = any ($1::bigint[])
    union
    select s.child from down d join subtask s on s.parent = d.child
)
select d.child as id from down d join task t on t.id = d.child;

-- name: strangers
-- Those of the given tasks that are neither this one nor submitted by it.
select id from unnest($2::bigint[]) as asked (id)
where id <> $1 and not exists (select 1 from subtask s where s.parent = $1 and s.child = asked.id);

-- name: unfinished
-- Of what parents want to wait for: their own subtasks that are not final, locked in order. The mark makes their finish look for edges.
-- Together with what each ($3) has waited for before and somebody has sent again meanwhile: its end will be counted too.
with pair as materialized (
    select s.parent, s.child from unnest($1::bigint[], $2::bigint[]) as p (parent, child)
    join subtask s on s.parent = p.parent and s.child = p.child
    union
    select e.downstream, e.upstream from unnest($3::bigint[]) as w (id)
    cross join lateral (select downstream, upstream from edge where downstream = w.id offset 0) e
), live as materialized (
    select t.id from task t where t.id in (select child from pair) order by t.id for update
), marked as (
    update task t set has_dependants = true from live where t.id between live.id and live.id
)
select distinct pair.parent, pair.child from pair join live on live.id = pair.child;

-- name: wait_for
insert into edge (upstream, downstream, kind) select u.child, u.parent, 1 from unnest($1::bigint[], $2::bigint[]) as u (parent, child)
on conflict do nothing;

-- name: would_wait_for_ever
-- Parents that one of the subtasks they want to wait for waits for in turn: found from the parent down, at most $3 steps.
with recursive down as (
    select p.id as parent, e.downstream from unnest($1::bigint[]) as p (id)
    cross join lateral (select downstream from edge where upstream = p.id offset 0) e
    union
    select d.parent, e.downstream from down d cross join lateral (select downstream from edge where upstream = d.downstream offset 0) e
)
select distinct parent from (select * from down limit $3) d
join unnest($1::bigint[], $2::bigint[]) as w (id, child) on w.id = d.parent and w.child = d.downstream;

-- name: suspend
-- A parent that waits for subtasks holds nothing meanwhile: blocked until the last of them ended, or ready when all have. If a person
-- paused it, it waits for that person too.
-- event: suspend
update task t
set state = case when w.count > 0 then 0 when t.hold_at is not null then 5 else 2 end,
    blocked_on = w.count + case when w.count > 0 and t.hold_at is not null then 1 else 0 end, requeues = w.requeues,
    start_by = clock_timestamp() + (t.start_by - t.eligible_at), eligible_at = clock_timestamp(),
    node = null, leased_at = null, started_at = null
from unnest($1::bigint[], $2::int[], $3::smallint[]) as w (id, count, requeues)
where t.id = w.id and t.state in (3, 4, 5)
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms, t.state;

-- name: family
-- Who submitted this task, and what it has submitted (at most $2).
select (select s.parent from subtask s where s.child = $1 limit 1) as parent,
    array(select s.child from subtask s where s.parent = $1 order by s.child limit $2) as children;

-- name: add
insert into tree (id, tenant, name, levels, strict) values ($1, $2, $3, $4, $5);

-- name: add_whole
-- A tree with its levels, and where its tasks are.
with added as (insert into tree (id, tenant, name, levels, strict) values ($1, $2, $3, $4, $5)),
levels as (
    insert into tree_level (tree, level, total)
    select $1, level - 1, total from unnest($4::int[]) with ordinality as l (total, level)
)
insert into tree_part (tree, level, first, last) select $1, p.* from unnest($6::int[], $7::bigint[], $8::bigint[]) as p;

-- name: add_parts
insert into tree_part (tree, level, first, last) select $1, p.* from unnest($2::int[], $3::bigint[], $4::bigint[]) as p;

-- name: get
select id, tenant, name, created_at, strict, open, cancel_at from tree where id = $1 and ($2::int is null or tenant = $2);

-- name: tasks
-- Run by run: as many as are asked for, however large the tree.
select * from (
    select t.* from (select level, first, last from tree_part where tree = $1 order by level, first) p
    cross join lateral (
        select t.id, coalesce(t.name, d.name) as name, t.state, t.level, t.exit_code, t.error
        from task_anywhere t join definition d on d.id = t.definition where t.id between p.first and p.last order by t.id limit $2
    ) t
    limit $2
) t order by level, id;

-- name: levels
-- The counters of a tree's levels: at most $3 of them, from level $2 up.
select level, total, succeeded, failed, cancelled, skipped, spared, expired, busy_ms, first_at, last_at,
    total - succeeded - failed - cancelled - skipped - spared - expired as left
from tree_level where tree = $1 and level >= $2 order by level limit $3;

-- name: earlier
-- The levels of the run before this one of the tree of the same name.
select level, succeeded, busy_ms, first_at, last_at from tree_level where tree = (
    select id from tree where tenant = $1 and name = $2 and id < $3 order by id desc limit 1
) and level >= $4 order by level limit $5;

-- name: lowest_shown
-- The lowest level with something left, or the highest one.
select coalesce(
    min(level) filter (where total > succeeded + failed + cancelled + skipped + spared + expired), max(level)
) from tree_level where tree = $1;

-- name: page
-- A tenant's trees, newest first.
select t.id, t.name, t.created_at, w.name as tenant, s.*, t.id in (select k.tree from task k where k.state in (3, 4, 5) and k.node >= 0 and k.tree is not null) as begun
from (
    select * from tree where ($1::int is null or tenant = $1) and ($2::text is null or name = $2) and id < $3 order by id desc limit $4
) t
join tenant w on w.id = t.tenant
cross join lateral (
    select coalesce(sum(total), 0)::bigint as total, coalesce(sum(succeeded), 0)::bigint as succeeded,
        coalesce(sum(failed), 0)::bigint as failed, coalesce(sum(cancelled), 0)::bigint as cancelled,
        coalesce(sum(skipped), 0)::bigint as skipped, coalesce(sum(spared), 0)::bigint as spared,
        coalesce(sum(expired), 0)::bigint as expired, count(*)::int as levels, max(last_at) as last_at
    from tree_level where tree = t.id
) s
order by t.id desc;

-- name: sums
-- All levels of a tree together.
select coalesce(sum(total), 0)::bigint as total, coalesce(sum(succeeded), 0)::bigint as succeeded,
    coalesce(sum(failed), 0)::bigint as failed, coalesce(sum(cancelled), 0)::bigint as cancelled,
    coalesce(sum(skipped), 0)::bigint as skipped, coalesce(sum(spared), 0)::bigint as spared,
    coalesce(sum(expired), 0)::bigint as expired, count(*)::int as levels, max(last_at) as last_at
from tree_level where tree = $1;

-- name: begun
-- Whether a node answers for a task of the tree now. Among few held tasks it is looked for by the nodes, otherwise from the lowest level up.
select case
    when (select count(*) from (select 1 from task where state in (3, 4, 5) and node >= 0 limit 1001) held) <= 1000
    then exists (select 1 from task where state in (3, 4, 5) and node >= 0 and tree = $1)
    else exists (
        select 1 from (select level from tree_going where tree = $1 order by level) g
        cross join lateral (
            select 1 from tree_part p join task t on t.id between p.first and p.last
            where p.tree = $1 and p.level = g.level and t.state in (3, 4, 5) limit 1
        ) t
    )
end;

-- name: live_ids
select t.id from (select first, last from tree_part where tree = $1 order by first) p
cross join lateral (select id from task where id between p.first and p.last order by id limit $2) t
limit $2;

-- name: first_ids
-- The ids of a tree's first tasks, wherever they are now.
select t.id from (select first, last from tree_part where tree = $1 order by first) p
cross join lateral (select id from task_anywhere where id between p.first and p.last order by id limit $2) t
limit $2;

-- name: add_levels
insert into tree_level (tree, level, total) select $1, level, total from unnest($2::int[], $3::int[]) as l (level, total);

-- name: lock_strict
-- Strict trees among the given ones, locked: who counts a level of theirs must see what all others have counted.
select id, open from tree where id = any ($1::bigint[]) and strict order by id for update;

-- name: count
-- Adds to the counters of levels what this transaction did to their tasks.
with d as materialized (
    select * from unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[],
        $10::bigint[], $11::bigint[], $12::bigint[])
        as d (tree, level, total, succeeded, failed, cancelled, skipped, spared, expired, busy_ms, first_ms, last_ms)
    order by tree, level
)
update tree_level l
set total = l.total + d.total, succeeded = l.succeeded + d.succeeded, failed = l.failed + d.failed,
    cancelled = l.cancelled + d.cancelled, skipped = l.skipped + d.skipped, spared = l.spared + d.spared,
    expired = l.expired + d.expired, busy_ms = l.busy_ms + d.busy_ms,
    first_at = least(l.first_at, 'epoch'::timestamptz + d.first_ms * interval '1 millisecond'),
    last_at = greatest(l.last_at, 'epoch'::timestamptz + d.last_ms * interval '1 millisecond')
from d
where l.tree = d.tree and l.level = d.level;

-- name: lowest_left
-- The lowest level of a tree that has tasks left; null when there is none.
select min(level) from tree_going where tree = $1;

-- name: set_open
update tree set open = $2 where id = $1;

-- name: release_level
-- A strict level may run: its tasks no longer wait for the level below. At most $4 of them, with ids above $3.
-- event: release
with hit as materialized (
    select t.id from (select first, last from tree_part where tree = $1 and level = $2 and last > $3 order by first) p
    cross join lateral (select id from task where id between greatest(p.first, $3 + 1) and p.last order by id limit $4) t
    limit $4
)
update task t
set blocked_on = t.blocked_on - 1,
    state = case when t.blocked_on > 1 then 0 when t.eligible_at > statement_timestamp() then 1 else 2 end,
    start_by = case when t.blocked_on > 1 then t.start_by
        else greatest(t.eligible_at, statement_timestamp()) + (t.start_by - t.eligible_at) end,
    eligible_at = case when t.blocked_on > 1 then t.eligible_at else greatest(t.eligible_at, statement_timestamp()) end
from hit
where t.id between hit.id and hit.id and +t.state = 0
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms, t.state, t.blocked_on;

-- name: level_end
-- The last id of the next chunk of a level.
select max(id) from (
    select t.id from (select first, last from tree_part where tree = $1 and level = $2 and last > $3 order by first) p
    cross join lateral (select id from task where id between greatest(p.first, $3 + 1) and p.last order by id limit $4) t
    limit $4
) c;

-- name: defer_level
insert into pending_level (tree, level, cursor) values ($1, $2, $3) on conflict (tree, level) do update set cursor = excluded.cursor;

-- name: next_deferred
select tree, level, cursor from pending_level order by tree, level limit 1 for update skip locked;

-- name: end_deferred
delete from pending_level where tree = $1 and level = $2;

-- name: wish_cancel
with t as (update tree set cancel_at = coalesce(cancel_at, clock_timestamp()) where id = $1)
insert into pending_cancel (tree) values ($1) on conflict do nothing;

-- name: cancelled
delete from pending_cancel where tree = $1;

-- name: to_cancel
-- The next tasks of a tree nobody has asked to cancel yet, from the top down: what waits goes before what it waits for.
select t.id, p.level from (
    select level, first, last from tree_part where tree = $1 and (level, first) < ($2, $3) order by level desc, first desc
) p
cross join lateral (
    select id from task where id between p.first and case when p.level < $2 then p.last else least(p.last, $3 - 1) end and cancel_at is null
    order by id desc limit $4
) t
limit $4;

-- name: left_cancelling
-- Trees whose cancelling a server began a while ago and did not finish.
select tree from pending_cancel where wished_at < clock_timestamp() - $1 * interval '1 second' order by tree limit 1;

-- name: forget
-- Trees from before $1 whose last task ended before $2 and that have no dead letter, at most $3 of them.
with old as materialized (
    select t.id from tree t
    where t.id < $1
        and not exists (select 1 from tree_going g where g.tree = t.id)
        and not exists (select 1 from tree_level l where l.tree = t.id and l.last_at >= $2)
        and not exists (select 1 from tree_part p join dead_letter d on d.id between p.first and p.last where p.tree = t.id)
    order by t.id limit $3
),
levels as (delete from tree_level l using old where l.tree = old.id),
parts as (delete from tree_part p using old where p.tree = old.id)
delete from tree t using old where t.id = old.id;

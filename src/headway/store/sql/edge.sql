-- Edges are not joined: PostgreSQL would rather read all edges of all days for every report, since it takes young partitions for small ones.
-- The release reads those of a list in one pass through the key, and is told the list's bounds, which leave one partition or two of all.
-- Elsewhere they are looked up upstream by upstream (`lateral`, `offset 0`).

-- name: release
-- The last dependency ended as wished: dependants whose counter reaches zero become ready, or scheduled when their time is later.
-- Their tolerance counts from now. Only dependants with $3 < id <= $4, and none at all when there are more than $5 of them: `count` tells.
-- $6 and $7: the lowest and the highest of the upstreams.
-- `doomed`: some of them will not get their wish. The answer has one row at least, and tells those that are alike in one: `ids`, as bytes.
-- They are updated, and so locked, in the order of their ids. They share one time, so that they are ties in the order and go out in runs.
-- event: release
with found as materialized (
    select downstream, kind from edge
    where upstream = any ($1::longs) and upstream between $6 and $7 and +downstream > $3 and +downstream <= $4 limit $5 + 1
), size as materialized (
    select count(*)::int as count, coalesce(bool_or(kind <> all ($2::smallint[])), false) as doomed from found
), hit as materialized (
    select downstream, count(*)::int as n from found
    where kind = any ($2::smallint[]) and (select count from size) <= $5 group by downstream order by downstream
), released as (
    update task t
    set blocked_on = t.blocked_on - hit.n,
        state = case when t.blocked_on > hit.n then 0 when t.eligible_at > statement_timestamp() then 1 else 2 end,
        start_by = case when t.blocked_on > hit.n then t.start_by
            else greatest(t.eligible_at, statement_timestamp()) + (t.start_by - t.eligible_at) end,
        eligible_at = case when t.blocked_on > hit.n then t.eligible_at else greatest(t.eligible_at, statement_timestamp()) end
    from hit
    where t.id between hit.downstream and hit.downstream and +t.state = 0
    returning t.id, t.tenant, t.shape, case when t.state > 0 then (date_part('epoch', t.start_by) * 1000000)::bigint end as start_by_us,
        t.cap_ms, t.state, t.blocked_on
)
select size.count, size.doomed, alike.* from size left join (
    select tenant, shape, start_by_us, cap_ms, state, blocked_on, string_agg(int8send(id), '') as ids
    from released group by tenant, shape, start_by_us, cap_ms, state, blocked_on
) alike on true;

-- name: wait_again
-- Failed tasks are to run once more. What still waits, and had its wish for one of them, waits for it again: its end will be counted again.
with hit as materialized (
    select e.downstream, count(*)::int as n from unnest($1::bigint[]) u (id) cross join lateral (
        select downstream from edge where upstream = u.id and kind in (1, 2) offset 0
    ) e group by e.downstream order by e.downstream
)
update task t set blocked_on = t.blocked_on + hit.n from hit where t.id between hit.downstream and hit.downstream and t.blocked_on > 0;

-- name: doomed
-- Dependants whose wish can no longer come true: they will be skipped. `count`: how many of these upstreams each waits for in vain.
select t.id, min(u.id) as upstream, count(*)::int as count from unnest($1::bigint[]) u (id) cross join lateral (
    select downstream from edge where upstream = u.id and kind <> all ($2::smallint[]) and +downstream > $3 and +downstream <= $4 offset 0
) e cross join lateral (select id from task where id = e.downstream and +state = 0 offset 0) t
group by t.id order by t.id;

-- name: lock_doomed
-- Those of them that still wait. `begun`: their wish had come true before somebody sent the upstream again, and by now they wait for tasks
-- of their own: for subtasks (only that requeues a task which is blocked), or for those of their `for_each`.
select id, requeues > 0 or exists (select 1 from fanout f where f.task = t.id and f.count is not null) as begun
from task t where id = any ($1::bigint[]) and +state = 0 order by id for update;

-- name: go_on
-- Those that have begun (locked by the caller) wait no more for so many upstreams ($2): those have ended, if not as wished.
-- event: release
update task t
set blocked_on = t.blocked_on - r.count, state = case when t.blocked_on > r.count then 0 else 2 end,
    start_by = case when t.blocked_on > r.count then t.start_by else statement_timestamp() + (t.start_by - t.eligible_at) end,
    eligible_at = case when t.blocked_on > r.count then t.eligible_at else statement_timestamp() end
from unnest($1::bigint[], $2::int[]) as r (id, count)
where t.id between r.id and r.id and +t.state = 0
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms, t.state, t.blocked_on;

-- name: chunk_end
-- The last downstream of the next chunk of a large release.
select max(downstream) from (
    select downstream from edge where upstream = $1 and downstream > $2 order by downstream limit $3
) c;

-- name: defer
insert into pending_release (upstream, state, spared) select *, $3 from unnest($1::bigint[], $2::smallint[]) on conflict do nothing;

-- name: next_deferred
select upstream, state, cursor, spared from pending_release order by upstream limit 1 for update skip locked;

-- name: advance_deferred
update pending_release set cursor = $2 where upstream = $1;

-- name: end_deferred
delete from pending_release where upstream = $1;

-- name: results
-- What the tasks that these waited for resulted in, in the order of their ids.
select e.downstream, e.upstream, coalesce(t.name, d.name) as name, t.definition, t.result
from unnest($1::bigint[]) w (id)
cross join lateral (select downstream, upstream from edge where downstream = w.id offset 0) e
join task_anywhere t on t.id = e.upstream join definition d on d.id = t.definition order by e.downstream, e.upstream;

-- name: result_sizes
select e.downstream, sum(coalesce(length(h.result), 4))::bigint as size
from unnest($1::bigint[]) w (id)
cross join lateral (select downstream, upstream from edge where downstream = w.id offset 0) e
join task_history h on h.id = e.upstream group by e.downstream;

-- name: upstream
-- What a task waits or waited for, level by level outwards, at most $2 steps away and $3 tasks.
with recursive reach as (
    select e.upstream as id, e.kind, 1 as step from edge e where e.downstream = $1
    union
    select e.upstream, e.kind, r.step + 1 from reach r join edge e on e.downstream = r.id where r.step < $2
)
select r.id, min(r.step)::int as step, (array_agg(r.kind order by r.step))[1] as kind, coalesce(t.name, d.name) as name, t.state, t.level
from (select * from reach limit $3 * 10) r join task_anywhere t on t.id = r.id join definition d on d.id = t.definition
where $4::int is null or t.tenant = $4
group by r.id, t.name, d.name, t.state, t.level order by step, r.id limit $3;

-- name: downstream
-- What waits or waited for a task.
with recursive reach as (
    select e.downstream as id, e.kind, 1 as step from edge e where e.upstream = $1
    union
    select e.downstream, e.kind, r.step + 1 from reach r join edge e on e.upstream = r.id where r.step < $2
)
select r.id, min(r.step)::int as step, (array_agg(r.kind order by r.step))[1] as kind, coalesce(t.name, d.name) as name, t.state, t.level
from (select * from reach limit $3 * 10) r join task_anywhere t on t.id = r.id join definition d on d.id = t.definition
where $4::int is null or t.tenant = $4
group by r.id, t.name, d.name, t.state, t.level order by step, r.id limit $3;

-- name: critical_path
-- The chain that decides when the tree ends: from what ends last, always back to what kept it waiting longest. What has not ended
-- counts as ending last of all.
with recursive path as (
    (select id, 1 as step from (
        select t.id, t.ended_at, t.level from tree_part p join task_anywhere t on t.id between p.first and p.last
        where p.tree = $1 and t.state <> 9
    ) t order by t.ended_at desc nulls first, t.level desc, t.id desc limit 1)
    union all
    select b.upstream, p.step + 1 from path p cross join lateral (
        select e.upstream from edge e join task_anywhere u on u.id = e.upstream
        where e.downstream = p.id order by u.ended_at desc nulls first, u.id desc limit 1
    ) b where p.step < $2
)
select p.id, p.step, coalesce(t.name, d.name) as name, t.state, t.level, t.eligible_at, t.started_at, t.ended_at
from path p join task_anywhere t on t.id = p.id join definition d on d.id = t.definition order by p.step desc;

-- name: edges
-- The edges of a tree, a page at a time.
select e.upstream, e.downstream, e.kind from edge e
where e.downstream in (select generate_series(p.first, p.last) from tree_part p where p.tree = $1)
    and (e.upstream, e.downstream) > ($2, $3) order by e.upstream, e.downstream limit $4;

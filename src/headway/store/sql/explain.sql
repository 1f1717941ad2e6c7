-- name: ahead
-- Ready tasks of a tenant that go before one that stands at $2, by shape: each is read by the ready index alone, up to $5.
-- Those of the shapes $6 stand as many seconds before their start_by as $7 says.
with recursive found as (
    (select shape from task where state = 2 and tenant = $1 order by shape limit 1)
    union all
    select next.shape from found cross join lateral (
        select shape from task where state = 2 and tenant = $1 and shape > found.shape order by shape limit 1
    ) next
)
select f.shape, (
    select count(*)::int from (
        select 1 from task where state = 2 and tenant = $1 and shape = f.shape and (start_by, cap_ms, id) < (
            $2::timestamptz + make_interval(secs => coalesce(($7::float8[])[array_position($6::int[], f.shape)], 0)), $3, $4
        ) limit $5
    ) x
) as count from found f;

-- name: held
-- What these nodes hold, and for how long it has run.
select node, tenant, shape, definition, cap_ms, size, name,
    greatest(coalesce(extract(epoch from clock_timestamp() - started_at), 0), 0)::float8 as ran_s
from task where node = any ($1::int[]) and state in (3, 4, 5) limit $2;

-- name: silence
-- For how long a node that counts as alive has not been heard, in seconds.
select greatest(extract(epoch from clock_timestamp() - seen_at), 0)::float8 from node where id = $1 and state = 0;

-- name: blockers
-- What a blocked task still waits for.
select t.id, coalesce(t.name, d.name) as name, t.state
from edge e join task t on t.id = e.upstream join definition d on d.id = t.definition
where e.downstream = $1 order by t.id limit $2;

-- name: past
-- What a task brings along: how its last attempt ended, its newest checkpoint, its limit on waiting.
select a.attempt, a.outcome, a.error, n.name as node, c.saved_at, extract(epoch from w.since)::float8 as since, w.limit_ms, w.keep, w.warned
from (select) one
left join lateral (select attempt, outcome, error, node from attempt where task = $1 order by attempt desc limit 1) a on true
left join node n on n.id = a.node
left join lateral (select saved_at from checkpoint where task = $1 order by saved_at desc limit 1) c on true
left join waiting_limit w on w.task = $1;

-- name: list_due
-- Of a task that stands for a list that is to be made into tasks: what it waits for.
select waits, waits_until from fanout where task = $1 and due and count is null;

-- name: expanded
-- Whether the task stands for a list whose tasks are there.
select exists (select from fanout where task = $1 and count is not null);

-- name: lock
-- A task of a tenant that no node has, to be changed in place.
select id, tenant, state, definition, shape, start_by, eligible_at, cap_ms, category, attempt, name, labels, size
from task where id = $1 and ($2::int is null or tenant = $2) and (state in (0, 1, 2) or state = 5 and node is null) for update;

-- name: change
-- A waiting task becomes another one under the same id; its fence stays. Its tolerance counts from the moment it could run: a time that
-- is over means now, or since it could run already, as for a new task; else the past would go before everybody else. One that stands for
-- a `for_each` (its cap is 0) does so further on.
-- event: change, change_paused
with asked as (
    select case when $6::timestamptz > clock_timestamp() then $6 when $6 is not null then least(o.eligible_at, clock_timestamp())
        else o.eligible_at end as eligible_at
    from task o where o.id = $1
)
update task t set definition = $2, shape = $3, cap_ms = case when cap_ms = 0 then 0 else $4 end, category = $5,
    eligible_at = a.eligible_at, start_by = a.eligible_at + $7 * interval '1 millisecond',
    input = coalesce($8, input), name = coalesce($9, name), labels = coalesce($10::jsonb, labels), size = coalesce($11, size),
    state = case when state in (0, 5) then state when a.eligible_at > clock_timestamp() then 1 else 2 end
from asked a where t.id = $1 and (t.state in (0, 1, 2) or t.state = 5 and t.node is null)
returning t.id, tenant, shape, start_by, cap_ms, state;

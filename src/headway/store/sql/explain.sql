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

-- name: list_due
-- Whether the task stands for a list that is to be made into tasks.
select exists (select from fanout where task = $1 and due and count is null);

-- name: lock
-- A waiting task of a tenant, to be changed in place.
select id, tenant, state, definition, shape, start_by, eligible_at, cap_ms, category, attempt, name, labels, size
from task where id = $1 and ($2::int is null or tenant = $2) and state in (0, 1, 2) for update;

-- name: change
-- A waiting task becomes another one under the same id; its fence stays. Its tolerance counts from the moment it could run.
-- event: change
update task t set definition = $2, shape = $3, cap_ms = $4, category = $5,
    eligible_at = coalesce($6, eligible_at), start_by = coalesce($6, eligible_at) + $7 * interval '1 millisecond',
    input = coalesce($8, input), name = coalesce($9, name), labels = coalesce($10::jsonb, labels), size = coalesce($11, size),
    state = case when state = 0 then 0 when coalesce($6, eligible_at) > clock_timestamp() then 1 else 2 end
where t.id = $1 and t.state in (0, 1, 2)
returning t.id, tenant, shape, start_by, cap_ms, state;

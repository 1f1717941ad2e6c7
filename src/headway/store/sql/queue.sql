-- name: all
select name, runs, hours::text as hours, timezone, paused from queue order by name;

-- name: add
insert into queue (name, runs, hours, timezone, paused) values ($1, $2, $3::jsonb, $4, $5) on conflict (name) do nothing returning name;

-- name: set
update queue set runs = $2, hours = $3::jsonb, timezone = $4, paused = $5, changed_at = clock_timestamp() where name = $1 returning name;

-- name: remove
-- Named queues only, and only while no shape refers to it: a task that waits always has a queue.
delete from queue where name = $1 and name <> all ($2::text[])
    and not exists (select 1 from shape where coalesce(rules ->> 'queue', 'delayable') = $1)
returning name;

-- name: promote
-- Tasks that could wait and can no longer, if this server still leads the planner: they are urgent now, and everyone is told (E2).
with fence as materialized (
    select 1 from duty where name = 'planner' and epoch = $2 and expires_at > clock_timestamp() for key share
), due as materialized (
    select id from task where id = any ($1::bigint[]) and +state = 2 and category <> 0 and exists (select 1 from fence)
    order by id for update skip locked
), up as (
    update task t set category = 0 from due where t.id between due.id and due.id returning t.id, t.tenant
), told as (
    insert into event (tenant, kind, tasks) select tenant, 'task.promoted', array_agg(id) from up group by tenant
)
select id from up;

-- name: publish
-- What the planner knows, for every server.
with fence as materialized (
    select 1 from duty where name = 'planner' and epoch = $2 and expires_at > clock_timestamp() for key share
)
insert into plan_state (at, body) select clock_timestamp(), $1::jsonb from fence
on conflict (id) do update set at = excluded.at, body = excluded.body
returning 1;

-- name: state
select body::text as body, extract(epoch from clock_timestamp() - at)::float8 as age from plan_state;

-- name: peak
-- The peak that goes on, or has just ended.
insert into peak (began_at, ended_at, utilisation, capacity, held_tasks, held_cpus, held_seconds) values ($1, $2, $3, $4, $5, $6, $7)
on conflict (began_at) do update set ended_at = excluded.ended_at, utilisation = greatest(peak.utilisation, excluded.utilisation),
    capacity = excluded.capacity, held_tasks = greatest(peak.held_tasks, excluded.held_tasks),
    held_cpus = greatest(peak.held_cpus, excluded.held_cpus), held_seconds = greatest(peak.held_seconds, excluded.held_seconds);

-- name: open_peak
-- The peak a leader left open; older ones, of leaders before it, end with this.
with open as materialized (select began_at from peak where ended_at is null order by began_at desc limit 1), closed as (
    update peak p set ended_at = clock_timestamp() from open where p.ended_at is null and p.began_at < open.began_at
)
select p.began_at, p.utilisation, p.capacity, p.held_tasks, p.held_cpus, p.held_seconds from peak p join open using (began_at);

-- name: peaks
select began_at, ended_at, utilisation, capacity, held_tasks, held_cpus, held_seconds from peak
where began_at > clock_timestamp() - $1 * interval '1 second' order by began_at desc limit $2;

-- name: held
-- Tasks that were handed out or are paused, by shape and state, and how many of them are on nodes.
select shape, state, count(*)::int as count, count(node)::int as on_nodes from task where state in (3, 4, 5) and ($1::int is null or tenant = $1)
group by shape, state;

-- name: held_by_tenant
-- What a tenant holds.
select shape, count(*)::int as count from task where state in (3, 4, 5) and node is not null and tenant = $1 group by shape;

-- name: depths
-- Ready tasks of each group (of a tenant, or of all): a loose scan over at most $2 groups, each counted up to $3 by the ready index alone.
-- Due is what has a start_by up to $4, and of the shapes $5 as many seconds later as $6 says.
with recursive found as (
    (select tenant, shape, 1 as n from task
        where state = 2 and tenant >= coalesce($1::int, 0) and tenant <= coalesce($1, 2147483647) order by tenant, shape limit 1)
    union all
    select next.tenant, next.shape, found.n + 1 from found cross join lateral (
        select tenant, shape from task
        where state = 2 and (tenant, shape) > (found.tenant, found.shape) and tenant <= coalesce($1, 2147483647)
        order by tenant, shape limit 1
    ) next where found.n < $2
)
select f.tenant, f.shape,
    (select count(*)::int from (select 1 from task where state = 2 and tenant = f.tenant and shape = f.shape limit $3) x) as ready,
    (select count(*)::int from (
        select 1 from task where state = 2 and tenant = f.tenant and shape = f.shape
            and start_by <= $4::timestamptz + make_interval(secs => coalesce(($6::float8[])[array_position($5::int[], f.shape)], 0)) limit $3) x) as due,
    (select extract(epoch from clock_timestamp() - eligible_at)::float8 from task
        where state = 2 and tenant = f.tenant and shape = f.shape order by start_by, cap_ms, id limit 1) as age
from found f;

-- name: not_ready
-- Scheduled and blocked tasks by shape, among the first $2 of each: of all tenants, or of one, whose own are found beside any number of others'.
select 1 as state, shape, count(*)::int as count from (
    (select shape from task where $1::int is null and state = 1 order by eligible_at limit $2)
    union all (select shape from task where state = 1 and state - 2 < 0 and tenant = $1 limit $2)
) t group by shape
union all
select 0, shape, count(*)::int from (
    (select shape from task where $1::int is null and state = 0 and state - 2 < 0 limit $2)
    union all (select shape from task where state = 0 and state - 2 < 0 and tenant = $1 limit $2)
) t group by shape;

-- name: boot_of
-- The boot and machine a node had so far, and whether it is thought to live; locked. (Not a CTE of `register`: a row changed by its own statement cannot be locked by it.)
select boot, machine, state = 0 as lives from node where name = $1 for update;

-- name: register
-- An agent announces its machine; the same name is the same node. One that only offers something else than before stays in its trouble.
insert into node (name, boot, capacity, region, version, task_key, machine) values ($1, $2, $3::jsonb, $4, $5, $6, $7)
on conflict (name) do update set boot = excluded.boot, capacity = excluded.capacity, region = excluded.region,
    machine = case when excluded.machine = '' and node.boot = excluded.boot then node.machine else excluded.machine end,
    version = excluded.version, state = 0, seen_at = clock_timestamp(), registered_at = clock_timestamp(),
    trouble = case when node.boot = excluded.boot then node.trouble else '' end,
    task_key = case when node.boot = excluded.boot then coalesce(node.task_key, excluded.task_key) else excluded.task_key end
returning id, task_key;

-- name: heartbeat
-- Nodes that live, how they are, and how far their clocks are ahead. A boot that was declared lost or replaced gets no row back.
update node n set seen_at = clock_timestamp(), state = case when n.state = 2 then 0 else n.state end, trouble = h.trouble, clock_ms = h.clock_ms
from unnest($1::int[], $2::text[], $3::text[], $4::bigint[]) as h (id, boot, trouble, clock_ms)
where n.id = h.id and n.boot = h.boot and n.state <> 1
returning n.id, n.boot, n.drain;

-- name: seen
-- Every live node's last heartbeat. In the same look: nodes that are lost or gone and still answer for tasks, because a planner gave
-- them something in the moment they were declared lost. (Not `exists`: that may be hashed, which reads every held task.)
select id, seen_at, state = 0 as live from node n where state = 0
    or (select true from task t where t.node = n.id and t.state in (3, 4, 5) limit 1);

-- name: lose
-- Declares nodes lost, if they are still as silent as the reaper saw them.
update node n set state = 1 from unnest($1::int[], $2::timestamptz[]) as s (id, seen_at)
where n.id = s.id and n.seen_at = s.seen_at and n.state = 0
returning n.id, n.name;

-- name: leave
-- An agent that ended in order.
update node set state = 2 where id = $1 and boot = $2;

-- name: all
select id, name, boot, state, drain, trouble, clock_ms, capacity::text as capacity, region, version, seen_at from node order by id;

-- name: set_drain
update node set drain = $2 where id = $1 returning id;

-- name: forget
-- Nodes that left or were lost long ago and hold nothing.
delete from node n where n.state <> 0 and n.seen_at < clock_timestamp() - interval '1 day'
    and not exists (select 1 from task where node = n.id and state in (3, 4, 5));

-- name: remove
-- A node that is lost or gone and holds nothing, for which nobody shall wait.
delete from node n where n.id = $1 and n.state <> 0 and not exists (select 1 from task where node = n.id and state in (3, 4, 5))
returning id;

-- name: names
select id, name from node where id = any ($1::int[]) and state <> 0 for update;

-- What nodes are told to do to attempts they hold, and what they answered.

-- name: look
-- The rows behind a wish to pause, resume or signal, locked in order; the tenant's own only.
select id, tenant, shape, start_by, cap_ms, state, node, attempt, cancel_at, hold_at, definition, started_at from task
where id = any ($1::bigint[]) and ($2::int is null or tenant = $2) order by id for update;

-- name: pause_waiting
-- Tasks that wait for time or room leave the order.
-- event: pause
update task t set state = 5, hold_at = clock_timestamp() where t.id = any ($1::bigint[]) and t.state in (1, 2)
returning t.id, t.tenant;

-- name: hold_blocked
-- Tasks that wait for others wait for a person too: one more to wait for.
update task t set hold_at = clock_timestamp(), blocked_on = t.blocked_on + 1
where t.id = any ($1::bigint[]) and t.blocked_on > 0 and t.hold_at is null
returning t.id, t.tenant;

-- name: hold
-- Tasks on a node: the wish is recorded, the node is told.
update task t set hold_at = coalesce(t.hold_at, clock_timestamp()) where t.id = any ($1::bigint[]);

-- name: unhold
update task t set hold_at = null where t.id = any ($1::bigint[]);

-- name: release_held
-- A person no longer keeps these from starting; those that wait for nothing else are ready, or scheduled when their time is later.
-- event: release
update task t
set hold_at = null, blocked_on = t.blocked_on - 1,
    state = case when t.blocked_on > 1 then 0 when t.eligible_at > clock_timestamp() then 1 else 2 end
where t.id = any ($1::bigint[]) and t.state = 0 and t.hold_at is not null
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms, t.state;

-- name: resume_waiting
-- Paused without a node: back into the order, where they were.
-- event: resume
update task t
set hold_at = null, state = case when t.eligible_at > clock_timestamp() then 1 else 2 end
where t.id = any ($1::bigint[]) and t.state = 5 and t.node is null
returning t.id, t.tenant, t.shape, t.start_by, t.cap_ms, t.state;

-- name: ask
insert into control (task, attempt, node, word, argument) select * from unnest($1::bigint[], $2::int[], $3::int[], $4::text[], $5::text[])
returning number, task, attempt, node, word, argument;

-- name: open_of
-- What a node has not answered.
select number, task, attempt, word, argument from control where node = $1 and done_at is null order by number;

-- name: answers
select number, answer from control where number = any ($1::bigint[]) and done_at is not null;

-- name: pauses_of
-- When an attempt was stopped and went on, as its node answered; kept for a day.
select answer = 'paused' as stopped, done_at from control where task = $1 and attempt = $2 and answer in ('paused', 'resumed') order by number;

-- name: answered
update control c set done_at = clock_timestamp(), answer = r.answer
from unnest($1::bigint[], $2::text[], $3::int[]) as r (number, answer, node)
where c.number = r.number and c.node = r.node and c.done_at is null
returning c.number, c.task, c.attempt, c.word;

-- name: abandon
-- What was asked of attempts that their node no longer answers for will not be answered; old answers are of no use.
with over as (
    select c.number from control c left join task t on t.id = c.task and t.attempt = c.attempt and t.node = c.node
    where c.done_at is null and t.id is null limit $1
), gone as (update control c set done_at = clock_timestamp(), answer = 'gone' from over where c.number = over.number)
delete from control where done_at < clock_timestamp() - interval '1 day';

-- name: paused
-- Frozen, says the node.
-- event: pause
update task t set state = 5 from unnest($1::bigint[], $2::int[], $3::int[]) as r (id, attempt, node)
where t.id between r.id and r.id and t.attempt = r.attempt and +t.node = r.node and +t.state = 4
returning t.id, t.tenant;

-- name: resumed
-- Goes on, says the node.
-- event: resume
update task t set state = 4 from unnest($1::bigint[], $2::int[], $3::int[]) as r (id, attempt, node)
where t.id between r.id and r.id and t.attempt = r.attempt and +t.node = r.node and +t.state = 5
returning t.id, t.tenant;

-- name: holders
-- Which of these attempts their nodes answer for: others are not theirs to speak of.
select t.id, t.tenant from task t join unnest($1::bigint[], $2::int[], $3::int[]) as r (id, attempt, node)
    on t.id = r.id and t.attempt = r.attempt and t.node = r.node;

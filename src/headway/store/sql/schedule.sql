-- name: look
-- Seconds until the next schedule is due (negative: overdue), and whether a firing waits for its turn.
select (select extract(epoch from due_at - clock_timestamp())::float8 from schedule
        where due_at is not null and paused_at is null order by due_at limit 1) as next_due,
    exists (select 1 from firing where state = 0) as waiting;

-- name: due
-- Schedules whose time has come, the longest overdue first, locked; of these only, if ids are given.
select id, tenant, name, spec, body, definitions, anchor, next_at, problem, running, clock_timestamp() as now
from schedule
where due_at <= clock_timestamp() and due_at is not null and paused_at is null and ($2::int[] is null or id = any ($2::int[]))
order by due_at, id limit $1 for update skip locked;

-- name: turns
-- Firings that wait and whose turn has come: no earlier run of their schedule is going, or they need not care. A paused schedule
-- starts only what a person asked for.
select s.id, s.tenant, s.name, s.spec, s.body, s.definitions, s.problem, s.running, f.at, f.kind, f.overlap, f.missed
from (select distinct schedule from firing where state = 0) w
join schedule s on s.id = w.schedule
cross join lateral (
    select at, kind, overlap, missed, row_number() over (order by at) as n from firing
    where schedule = s.id and state = 0 and (s.paused_at is null or kind <> 0) order by at limit $1
) f
where ($2::int[] is null or s.id = any ($2::int[])) and (f.overlap = 3 or f.n = 1 and not exists (
    select 1 from unnest(s.running) as r (id)
    where exists (select 1 from task where id = r.id) or exists (select 1 from tree_going where tree = r.id)))
order by s.id, f.at limit $1 for update of s skip locked;

-- name: replaced
-- Runs that must end because a later firing of their schedule waits to take their place.
select distinct r.id from firing f join schedule s on s.id = f.schedule, unnest(s.running) as r (id) where f.state = 0 and f.overlap = 2;

-- name: going
-- Those of the given runs that have not ended: tasks, or trees with a task that has not.
select r.id from unnest($1::bigint[]) as r (id)
where exists (select 1 from task where id = r.id) or exists (select 1 from tree_going where tree = r.id);

-- name: waiting
-- How many firings of each of these schedules wait.
select schedule, count(*)::int as count from firing where state = 0 and schedule = any ($1::int[]) group by schedule;

-- name: fire
-- Firings, each once: those that exist already are not given back.
insert into firing (schedule, at, kind, state, run, missed, note, overlap)
select * from unnest($1::int[], $2::timestamptz[], $3::smallint[], $4::smallint[], $5::bigint[], $6::int[], $7::text[], $8::smallint[])
on conflict do nothing
returning schedule, at;

-- name: take_turns
-- Waiting firings that start now.
update firing f set state = r.state, run = r.run, fired_at = clock_timestamp(), note = r.note
from unnest($1::int[], $2::timestamptz[], $3::smallint[], $4::bigint[], $5::text[]) as r (schedule, at, state, run, note)
where f.schedule = r.schedule and f.at = r.at and f.state = 0
returning f.schedule, f.at;

-- name: waits
-- Why firings whose turn has come wait on. The same again is not written.
update firing f set note = r.note from unnest($1::int[], $2::timestamptz[], $3::text[]) as r (schedule, at, note)
where f.schedule = r.schedule and f.at = r.at and f.state = 0 and f.note is distinct from r.note;

-- name: replace_waiting
-- Firings whose place a later one takes.
update firing f set state = 4, note = 'a later firing took its place'
from unnest($1::int[], $2::timestamptz[]) as r (schedule, before)
where f.schedule = r.schedule and f.state = 0 and f.kind = 0 and f.at < r.before;

-- name: advance
-- Where each schedule goes on, and which of its runs are going. (Arrays of arrays must be rectangular, so runs come as texts.)
update schedule s
set next_at = r.next_at, due_at = r.due_at, last_at = greatest(s.last_at, r.last_at), running = r.running::bigint[]
from unnest($1::int[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::text[]) as r (id, next_at, due_at, last_at, running)
where s.id = r.id;

-- name: set_running
-- The runs of each schedule that are going.
update schedule s set running = r.running::bigint[] from unnest($1::int[], $2::text[]) as r (id, running) where s.id = r.id;

-- name: stop
-- A schedule that cannot fire is paused, and says why. What a person asked for would start though it is paused, so it is skipped.
with stopped as (
    update schedule set paused_at = clock_timestamp(), problem = $2 where id = $1 and paused_at is null returning tenant, name
), given_up as (
    update firing set state = 2, note = $2, fired_at = clock_timestamp() where schedule = $1 and state = 0 and kind <> 0
)
insert into event (tenant, kind, data)
select tenant, 'alert.schedule_stopped', json_build_object('schedule', name, 'problem', $2::text)::text from stopped;

-- name: alarm
-- Tells of runs that failed because they cannot be done in time.
insert into event (tenant, kind, data)
select r.tenant, 'alert.impossible_tree', r.data from unnest($1::int[], $2::text[]) as r (tenant, data);

-- name: lock_named
-- A tenant's schedules by name, for a change.
select id, tenant, name, hash, spec, body, definitions, anchor, next_at, due_at, last_at, paused_at, problem, running,
    clock_timestamp() as now
from schedule where tenant = $1 and name = any ($2::text[]) order by id for update;

-- name: size
-- Of how many tasks a schedule is.
select cardinality(definitions) from schedule where tenant = $1 and name = $2;

-- name: add
insert into schedule (tenant, name, hash, spec, body, definitions, anchor, next_at, due_at, paused_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
on conflict do nothing
returning id;

-- name: change
update schedule
set hash = $2, spec = $3, body = $4, definitions = $5, anchor = $6, next_at = $7, due_at = $8, paused_at = $9, problem = null,
    changed_at = clock_timestamp(), checked_at = clock_timestamp()
where id = $1;

-- name: pause
-- Pausing again changes nothing.
update schedule set paused_at = coalesce(paused_at, clock_timestamp()) where tenant = $1 and name = $2 returning id;

-- name: resume
-- Goes on from here: what fell into the pause was not missed.
update schedule set paused_at = null, problem = null, next_at = $2, due_at = $3 where id = $1;

-- name: delete
-- Its firings go with it; runs under way go on.
delete from schedule where tenant = $1 and name = $2 returning id;

-- name: list
-- Schedules by tenant and name after a cursor, with what became of their last firing; everybody's when $1 is null.
select s.id, s.name, s.spec, s.body, cardinality(s.definitions) as tasks, s.anchor, s.next_at, s.due_at, s.last_at, s.paused_at, s.problem, s.created_at, s.changed_at,
    w.name as tenant_name, f.state as last_state, f.note as last_note
from schedule s join tenant w on w.id = s.tenant
left join lateral (select state, note from firing where schedule = s.id order by at desc limit 1) f on true
where ($1::int is null or s.tenant = $1) and ($2::text is null or s.name = $2) and s.id > $3
order by s.id limit $4;

-- name: firings
-- What a schedule did, the latest first, with how a run of one task ended.
select f.at, f.fired_at, f.kind, f.state, f.run, f.missed, f.note, t.state as task_state,
    exists (select 1 from tree where id = f.run) as is_tree
from firing f left join task_anywhere t on t.id = f.run
where f.schedule = $1 order by f.at desc limit $2;

-- name: tree_sums
-- How the tasks of these trees ended, and whether a node answers for one of them now.
select tree, sum(total)::int as total, sum(succeeded)::int as succeeded, sum(failed)::int as failed, sum(cancelled)::int as cancelled,
    sum(skipped)::int as skipped, sum(spared)::int as spared, sum(expired)::int as expired,
    l.tree in (select k.tree from task k where k.state in (3, 4, 5) and k.node >= 0 and k.tree is not null) as begun
from tree_level l where tree = any ($1::bigint[]) group by tree;

-- name: backfill
-- Moments to make up for. What ran, runs or waits already is left alone.
insert into firing (schedule, at, kind, state, overlap, note)
select $1, a.at, 2, 0, $3, null from unnest($2::timestamptz[]) as a (at)
on conflict (schedule, at) do update
set state = 0, kind = 2, overlap = excluded.overlap, note = null, fired_at = clock_timestamp()
where firing.state in (2, 3, 4)
returning at;

-- name: stop_backfill
-- What still waits of backfills is given up, and says so; it can be asked for again.
update firing set state = 2, note = 'the backfill was stopped', fired_at = clock_timestamp()
where schedule = $1 and state = 0 and kind = 2
returning at;

-- name: forget_firings
-- Old firings, some at a time.
delete from firing where (schedule, at) in (
    select schedule, at from firing where fired_at < $1 and state <> 0 order by fired_at limit $2
);

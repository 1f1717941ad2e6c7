-- Endpoints of tenants, and the messages that go to them. $mine: a tenant's own; an administrator has those without a tenant too.

-- name: wake_up
-- Who listens changes. Before the first endpoint that is enabled there was nobody to tell: events count from now.
update dispatched d
set version = d.version + 1, xid = case when any_.one then d.xid else pg_snapshot_xmin(pg_current_snapshot()) end,
    seq = case when any_.one then d.seq else 0 end
from (select exists (select 1 from webhook where enabled) as one) any_;

-- name: add
insert into webhook (tenant, name, url, kinds, secret, implicit) values ($1, $2, $3, $4, $5, $6)
on conflict (tenant, name) do nothing returning id;

-- name: mine
select w.*, t.name as tenant_name,
    (select count(*)::int from (select 1 from delivery d where d.webhook = w.id and d.state = 0 limit 1000) x) as waiting,
    (select count(*)::int from (select 1 from delivery d where d.webhook = w.id and d.state = 2 limit 1000) x) as dead
from webhook w left join tenant t on t.id = w.tenant
where (w.tenant = $1 or ($2::boolean and w.tenant is null)) and ($3::text is null or w.name = $3) order by w.tenant nulls first, w.name;

-- name: change
update webhook set url = coalesce($2, url), kinds = coalesce($3::text[], kinds), enabled = coalesce($4, enabled) where id = $1;

-- name: rotate
-- The old secret signs along for a while.
update webhook set old_secret = secret, old_until = clock_timestamp() + $3 * interval '1 second', secret = $2 where id = $1;

-- name: in_plain_text
-- Endpoints whose secrets were stored before they were sealed.
select id, tenant, name, secret, old_secret from webhook
where secret not like 'sealed:%' or old_secret not like 'sealed:%' order by id limit $1;

-- name: seal
-- Their secrets, sealed; not of those that were given a new one meanwhile.
update webhook w set secret = r.secret, old_secret = r.old_secret
from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[]) as r (id, plain, old_plain, secret, old_secret)
where w.id = r.id and w.secret = r.plain and w.old_secret is not distinct from r.old_plain;

-- name: remove
delete from webhook where id = $1;

-- name: any_of
select exists (select 1 from webhook where tenant = $1);

-- name: remove_all_of
delete from webhook where tenant = $1;

-- name: names
-- Which of these names a tenant has.
select name from webhook where tenant = $1 and name = any ($2::text[]);

-- name: notifying
insert into notifying (definition, tenant, version) select $1, $2, version from dispatched on conflict do nothing;

-- name: listening
-- Everyone who may want to be told, and definitions whose tasks say whom to tell.
select id, tenant, name, url, kinds, implicit from webhook where enabled;

-- name: notifying_definitions
select n.definition, n.tenant, n.version, d.body from notifying n join definition d on d.id = n.definition
where n.version > $1 order by n.version;

-- name: cursor
-- How far we are, and below what nothing can appear any more.
select xid::text as xid, seq, version, pg_snapshot_xmin(pg_current_snapshot())::text as horizon from dispatched;

-- name: events
-- Facts after the cursor and below the horizon, of these tenants, or of all.
select e.xid::text as xid, e.seq, e.at, e.kind, e.tasks, e.data, e.tenant, w.name as tenant_name
from event e left join tenant w on w.id = e.tenant
where (e.xid, e.seq) > ($1::text::xid8, $2) and e.xid < $3::text::xid8 and ($4::boolean or e.tenant = any ($5::int[]))
order by e.xid, e.seq limit $6;

-- name: advance
update dispatched set xid = $1::text::xid8, seq = $2;

-- name: tasks
-- What a message says about tasks.
select t.id, t.definition, coalesce(t.name, d.name) as name, t.state, t.attempt, t.outcome, t.exit_code, t.error, t.labels::text as labels,
    t.started_at, t.ended_at, t.tree, n.name as node
from task_anywhere t join definition d on d.id = t.definition left join node n on n.id = t.node
where t.id = any ($1::bigint[]);

-- name: send
-- Messages for endpoints; one that is there already is not made twice.
insert into delivery (webhook, task, message, kind, body)
select r.webhook, r.task, r.message, r.kind, r.body
from unnest($1::int[], $2::bigint[], $3::text[], $4::text[], $5::text[]) as r (webhook, task, message, kind, body)
join webhook w on w.id = r.webhook
on conflict (webhook, message) do nothing;

-- name: claim
-- Messages that are due, the oldest first, not for endpoints that are busy; nobody else takes them before $2 seconds are over. This and
-- what follows need not wait for the disk: what a crash forgets is delivered once more.
with relaxed as materialized (select set_config('synchronous_commit', 'off', true)), due as (
    select d.id from relaxed, delivery d join webhook w on w.id = d.webhook and w.enabled
    where d.state = 0 and d.due_at <= clock_timestamp() and d.webhook <> all ($3::int[])
    order by d.due_at limit $1 for update of d skip locked
)
update delivery d set due_at = clock_timestamp() + $2 * interval '1 second', attempts = d.attempts + 1
from due, webhook w where d.id = due.id and w.id = d.webhook
returning d.id, d.webhook, d.message, d.body, d.attempts, w.url, w.tenant, w.name, w.secret,
    case when w.old_until > clock_timestamp() then w.old_secret end as old_secret;

-- name: next_due
select extract(epoch from d.due_at - clock_timestamp())::float8 from delivery d join webhook w on w.id = d.webhook and w.enabled
where d.state = 0 order by d.due_at limit 1;

-- name: delivered
with relaxed as materialized (select set_config('synchronous_commit', 'off', true))
update delivery d set state = 1, ended_at = clock_timestamp(), status = $2, error = null from relaxed where d.id = $1 and d.state = 0;

-- name: failed
-- To be tried again after $4 seconds, or dead when that is null.
update delivery
set status = $2, error = $3, due_at = clock_timestamp() + coalesce($4::float8, 0) * interval '1 second',
    state = case when $4::float8 is null then 2 else 0 end, ended_at = case when $4::float8 is null then clock_timestamp() end
where id = $1 and state = 0;

-- name: deliveries
select d.id, d.task, d.message, d.kind, d.state, d.attempts, d.due_at, d.created_at, d.ended_at, d.status, d.error from delivery d
where d.webhook = $1 and ($2::smallint is null or d.state = $2) and ($3::bigint is null or d.id < $3) order by d.id desc limit $4;

-- name: known_messages
select message from delivery where webhook = $1 and message = any ($2::text[]);

-- name: replay
-- Send again: by message, those that died, or everything made since a moment.
update delivery set state = 0, attempts = 0, due_at = clock_timestamp(), ended_at = null, status = null, error = null
where webhook = $1 and state <> 0
    and (message = any ($2::text[]) or ($3::boolean and state = 2) or created_at >= $4::timestamptz)
returning id;

-- name: forget
-- Messages that ended a week ago.
delete from delivery where id in (
    select id from delivery where state <> 0 and ended_at < clock_timestamp() - interval '7 days' order by ended_at limit $1
);

-- Facts for streams and webhooks, written in the transaction of what they tell.

-- name: tell
-- Tasks of one kind of event, a row for each tenant.
insert into event (tenant, kind, tasks)
select tenant, $1, array_agg(id order by id) from unnest($2::bigint[], $3::int[]) as r (id, tenant) group by tenant;

-- name: tell_each
-- Events that say something about each task.
insert into event (tenant, kind, tasks, data)
select r.tenant, r.kind, array[r.id], r.data from unnest($1::int[], $2::text[], $3::bigint[], $4::text[]) as r (tenant, kind, id, data);

-- name: of_another
-- Whether there are events, or cursors, of transactions that this PostgreSQL has not begun: they come from a dump of another one.
select exists (select 1 from event where xid >= pg_snapshot_xmax(pg_current_snapshot()))
    or exists (select 1 from dispatched where xid >= pg_snapshot_xmax(pg_current_snapshot()))
    or exists (select 1 from run_sample_cursor where xid >= pg_snapshot_xmax(pg_current_snapshot()));

-- name: renumber_told
-- Before the events themselves. Told is what comes before the first one that was not; some after it may be told twice.
update dispatched d set xid = '3',
    seq = coalesce((select min(seq) - 1 from event e where (e.xid, e.seq) > (d.xid, d.seq)), 9223372036854775807);

-- name: renumber
-- They become events of the first transaction there ever was; their sequence orders them.
update event set xid = '3';

-- name: renumber_sampled
update run_sample_cursor set xid = '3', seq = 9223372036854775807;

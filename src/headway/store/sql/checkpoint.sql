-- name: holder
-- The tenant of an attempt that this node answers for. The lock makes its finish wait for our commit.
select tenant from task where id = $1 and attempt = $2 and node = $3 and state in (3, 4, 5) for share;

-- name: running
-- The same for a task that speaks for itself.
select tenant from task where id = $1 and attempt = $2 and node is not null and state in (3, 4, 5) for share;

-- name: newest
select sequence, hash from checkpoint where task = $1 and kind = $2 order by sequence desc limit 1;

-- name: add
with told as (insert into event (tenant, kind, tasks) values ($5, 'task.checkpointed', array[$1::bigint]))
insert into checkpoint (task, kind, sequence, attempt, tenant, hash) values ($1, $2, $3, $4, $5, $6);

-- name: drop_older
delete from checkpoint where task = $1 and kind = $2 and sequence <= $3 returning task, kind, sequence, tenant, hash;

-- name: drop_one
delete from checkpoint where task = $1 and kind = $2 and hash = $3 returning task, kind, sequence, tenant, hash;

-- name: good
-- The checkpoints of tasks, newest first.
select c.task, c.hash, c.tenant, b.size from checkpoint c join blob b on b.tenant = c.tenant and b.hash = c.hash
where c.task = any ($1::bigint[]) and c.kind = $2 order by c.task, c.sequence desc;

-- name: state_of
-- How far a task came: the stage it is in or begins with, and its newest checkpoint.
select (select max(number) + 1 from stage where task = $1) as stage, c.saved_at, c.size from (select) one left join (
    select c.saved_at, b.size from checkpoint c join blob b on b.tenant = c.tenant and b.hash = c.hash
    where c.task = $1 order by c.saved_at desc limit 1
) c on true;

-- name: forget
-- Checkpoints of tasks that will not run again; a dead letter may.
with gone as (
    select task, kind, sequence from checkpoint c
    where not exists (select 1 from task t where t.id = c.task) and not exists (select 1 from dead_letter d where d.id = c.task)
    limit $1
)
delete from checkpoint c using gone g where c.task = g.task and c.kind = g.kind and c.sequence = g.sequence
returning c.task, c.kind, c.sequence, c.tenant, c.hash;

-- name: stage
-- Stages that have ended well, of attempts that their nodes still answer for.
insert into stage (task, number, attempt)
select t.id, r.number, r.attempt from unnest($1::bigint[], $2::int[], $3::int[], $4::int[]) as r (id, attempt, node, number)
join task t on t.id = r.id and t.attempt = r.attempt and t.node = r.node and t.state in (3, 4, 5)
on conflict do nothing;

-- name: next_stages
select task, max(number) + 1 as next from stage where task = any ($1::bigint[]) group by task;

-- name: add
insert into tree (id, tenant, name, levels) values ($1, $2, $3, $4);

-- name: get
select id, tenant, name, created_at, levels from tree where id = $1 and ($2::int is null or tenant = $2);

-- name: tasks
select t.id, coalesce(t.name, d.name) as name, t.state, t.level, t.exit_code, t.error
from task_anywhere t join definition d on d.id = t.definition where t.tree = $1 order by t.level, t.id limit $2;

-- name: counts
select level, state, count(*)::int as count from task_anywhere where tree = $1 group by level, state;

-- name: live_ids
select id from task where tree = $1 order by id limit $2;

-- name: add
-- Tasks that will become many; those that wait for nothing are due at once.
insert into fanout (task, source, items, due) select * from unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::boolean[]);

-- name: due
-- Nothing but the hold keeps these back: they must be expanded or gathered.
update fanout set due = true where task = any ($1::bigint[]);

-- name: next
-- One that is due and that nobody else works on.
select task, source, count, items from fanout where due order by task limit 1 for update skip locked;

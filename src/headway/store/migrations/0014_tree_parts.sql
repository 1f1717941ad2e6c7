-- Where a tree's tasks are: runs of neighbouring ids of one level. An index by tree cost each of its tasks three entries, when it is stored,
-- leased and ended; a run is one row for as many tasks as were submitted together (decision 0054).
create table tree_part (
    tree  bigint not null,
    first bigint not null, -- all ids from here
    last  bigint not null, -- to here are its tasks
    level int not null,
    primary key (tree, level, first)
);
insert into tree_part (tree, first, last, level)
select tree, min(id), max(id), level
from (
    select tree, coalesce(level, 0) as level, id, id - row_number() over (partition by tree, coalesce(level, 0) order by id) as run
    from task_anywhere where tree is not null
) t
group by tree, level, run;
drop index task_tree;
drop index task_history_tree;
drop index dead_letter_tree;

-- Levels with something left: a tree that has one has not ended.
create view tree_going as
select tree, level from tree_level where total > succeeded + failed + cancelled + skipped + spared + expired;

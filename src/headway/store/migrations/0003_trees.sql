-- Trees: counters for each level, strict levels, fan-out decided at run time, and the indexes that graph questions need.

alter table tree
    add column strict boolean not null default false, -- a level starts when everything below it has ended
    add column open int not null default 0, -- strict: levels up to this one may run
    add column cancel_at timestamptz; -- a wish: everything of the tree should be cancelled

-- What happened on each level, kept in the transaction that ends the tasks. `spared`: skipped as its edges wished.
create table tree_level (
    tree      bigint not null,
    busy_ms   bigint not null default 0, -- run time of the tasks that succeeded
    first_at  timestamptz, -- when the first of them began
    last_at   timestamptz, -- when the last one ended
    level     int not null,
    total     int not null,
    succeeded int not null default 0,
    failed    int not null default 0,
    cancelled int not null default 0,
    skipped   int not null default 0,
    spared    int not null default 0,
    expired   int not null default 0,
    constraint tree_level_adds_up check (
        total >= succeeded + failed + cancelled + skipped + spared + expired
        and least(succeeded, failed, cancelled, skipped, spared, expired) >= 0
    ),
    primary key (tree, level)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

insert into tree_level (tree, level, total, succeeded, failed, cancelled, skipped, expired, first_at, last_at)
select tree, level, count(*), count(*) filter (where state = 6), count(*) filter (where state = 7), count(*) filter (where state = 8),
    count(*) filter (where state = 9), count(*) filter (where state = 10), min(started_at), max(ended_at)
from task_anywhere where tree is not null and level is not null group by tree, level;

-- The release of a strict level of very many tasks goes on in chunks from here.
create table pending_level (
    tree   bigint not null,
    cursor bigint not null,
    level  int not null,
    primary key (tree, level)
);

-- Trees that are being cancelled: should the server die that does it, another goes on.
create table pending_cancel (
    tree      bigint primary key,
    wished_at timestamptz not null default clock_timestamp()
);

-- Whether the upstream itself was skipped because nobody needed it: then its dependants are spared too.
alter table pending_release add column spared boolean not null default false;

-- Tasks that stand for many: one for each item of a list. The list is here, or it is the result of `source`.
create table fanout (
    task   bigint primary key,
    source bigint,
    first  bigint, -- the ids of the tasks it became are from here
    last   bigint, -- to here
    count  int, -- how many; null: not yet
    due    boolean not null default false, -- somebody must expand it, or gather its results
    items  bytea
);
create index fanout_due on fanout (task) where due;

-- By level and id: listing, cancelling and releasing a tree of a million tasks goes on behind a cursor.
drop index task_tree;
create index task_tree on task (tree, level, id) where tree is not null;
drop index task_history_tree;
create index task_history_tree on task_history (tree, level, id) where tree is not null;
drop index dead_letter_tree;
create index dead_letter_tree on dead_letter (tree, level, id) where tree is not null;
create index tree_tenant on tree (tenant, id);
create index tree_name on tree (tenant, name, id);
create index edge_downstream on edge (downstream);

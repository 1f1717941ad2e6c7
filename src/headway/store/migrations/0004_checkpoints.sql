-- Content kept by hash (blobs), checkpoints and stages of tasks (H8), subtasks submitted at run time (C4).

-- Content-addressed and a tenant's own: the same bytes of two tenants are two rows, so that a hash tells nobody about others.
-- It is complete once all of its chunks are there and their hash was compared.
create table blob (
    tenant     int not null references tenant (id),
    hash       bytea not null check (length(hash) = 32), -- SHA-256
    size       bigint not null check (size >= 0),
    complete   boolean not null default false,
    touched_at timestamptz not null default clock_timestamp(), -- somebody wanted it: it is not swept away for a while
    primary key (tenant, hash)
);
create index blob_touched on blob (touched_at);

create table blob_chunk (
    tenant int not null,
    number int not null check (number >= 0),
    hash   bytea not null,
    data   bytea not null,
    primary key (tenant, hash, number),
    foreign key (tenant, hash) references blob (tenant, hash) on delete cascade
);
alter table blob_chunk alter column data set storage external; -- most content is compressed already

-- Who needs a blob. One that nobody needs is swept away an hour after it was last touched.
create table blob_use (
    tenant int not null,
    hash   bytea not null,
    holder text not null, -- for example `checkpoint/17/3`
    primary key (holder, tenant, hash),
    foreign key (tenant, hash) references blob (tenant, hash)
);
create index blob_use_blob on blob_use (tenant, hash);

-- The last good checkpoints of tasks that may run again. kind: 0 a folder (tar), 1 a value saved by a call.
create table checkpoint (
    task     bigint not null,
    saved_at timestamptz not null default clock_timestamp(),
    sequence int not null,
    attempt  int not null,
    tenant   int not null,
    kind     smallint not null check (kind in (0, 1)),
    hash     bytea not null,
    primary key (task, kind, sequence)
);

-- Stages that have ended well: the next attempt begins behind the last of them.
create table stage (
    task     bigint not null,
    ended_at timestamptz not null default clock_timestamp(),
    number   int not null,
    attempt  int not null,
    primary key (task, number)
) partition by range (task);

-- Tasks that a running task submitted. The key makes a submission of a parent that runs again find the child it already has.
create table subtask (
    parent  bigint not null,
    child   bigint not null,
    attempt int not null, -- of the parent, when it submitted or found it
    stale   boolean not null default false, -- the parent has failed since: a child that did not succeed may be replaced
    key     text not null,
    hash    bytea not null, -- of what was submitted
    primary key (parent, key)
) partition by range (parent);
create index subtask_child on subtask (child);

-- With this an agent makes the tokens of the attempts it runs; new with every boot.
alter table node add column task_key bytea;

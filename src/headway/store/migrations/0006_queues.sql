-- Queues (F5), where and when shapes may run (E4), what was shifted away from the peak.

-- What decides where and when tasks of a shape may run, beside its resources: queue, off_peak, preemptible.
alter table shape add column rules jsonb not null default '{}';

create table queue (
    name       text primary key,
    runs       text not null default 'always' check (runs in ('always', 'off-peak', 'peak')),
    hours      jsonb not null default '[]',
    timezone   text not null default 'UTC',
    paused     boolean not null default false,
    changed_at timestamptz not null default clock_timestamp()
);
insert into queue (name, runs) values ('urgent', 'always'), ('delayable', 'always'), ('periodic', 'always'), ('off-peak', 'off-peak');

-- What the planner knows and others ask for: written by its leader about once a second, read by every server. A new leader goes on from it.
create table plan_state (
    id   boolean primary key default true check (id),
    at   timestamptz not null,
    body jsonb not null
);

-- One row for each time the fleet was at its peak, and what waited meanwhile.
create table peak (
    began_at     timestamptz primary key,
    ended_at     timestamptz,
    utilisation  double precision not null default 0, -- the highest
    capacity     double precision not null default 0, -- cpus of the fleet then
    held_tasks   bigint not null default 0,           -- tasks that were put off
    held_cpus    double precision not null default 0, -- the most cpus that were asked for and put off at one moment
    held_seconds double precision not null default 0  -- cpu-seconds of waiting, summed
);

-- Blocked tasks are counted for the views of queues; only they pay for it.
create index task_blocked on task (tenant, shape) where state = 0;

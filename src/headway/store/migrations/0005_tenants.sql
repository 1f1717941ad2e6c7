-- Tenants in full: subscriptions, tiers, keys that can be listed, allowances, limits on waiting, the audit.

-- What a tenant pays for (domain/tenant.py Subscription; what is left out has its default). Tenants made later run in the sandbox.
alter table tenant add column subscription jsonb not null default '{}';
alter table tenant add column changed_at timestamptz not null default clock_timestamp();
update tenant set subscription = '{"isolation": "none"}' where id = 1;
create index tenant_changed on tenant (changed_at);

-- Named bundles of resources: the operator's (no tenant) and a tenant's own, which go first. Without resources: taken away.
create table tier (
    tenant     int references tenant (id),
    name       text not null,
    resources  jsonb,
    changed_at timestamptz not null default clock_timestamp(),
    unique nulls not distinct (tenant, name)
);
create index tier_changed on tier (changed_at);

create index token_tenant on token (tenant, id);

-- A reader sees what its tenant sees, or without a tenant everything, and changes nothing.
alter table token drop constraint token_role_check;
alter table token add constraint token_role_check check (role in ('admin', 'tenant', 'agent', 'reader'));
alter table token drop constraint token_check;
alter table token add constraint token_has_tenant check (role = 'reader' or (role = 'tenant') = (tenant is not null));

-- Rate limiter and waiting quota (A3 E6): what is left in the tenant's bucket, and what each server took out of it in advance.
create table allowance (
    tenant int primary key references tenant (id),
    tokens double precision not null,
    at     timestamptz not null,
    held   jsonb not null default '{}' -- server -> {tokens, slots, until}
) with (fillfactor = 50);

-- Waiting tasks of a tenant that are not in the ready index; tasks that are ready at once never enter it.
-- (`state - 2`: so that nobody who asks for one state is tempted to read it.)
create index task_held_back on task (tenant, id) where state - 2 < 0;

-- A small tenant's history among everybody's (docs/decisions/0025): insert-only and in the order of ids, it costs the finish little.
create index task_history_tenant on task_history (tenant, id);

-- Tasks with a limit on their waiting (E7): when to look at each again. A side table, so that tasks without a limit cost nothing.
create table waiting_limit (
    task   bigint primary key,
    due_at timestamptz not null,
    since  timestamptz, -- when it could first have run; null while it is blocked
    limit_ms bigint not null,
    keep   boolean not null default false,
    warned boolean not null default false
);
create index waiting_limit_due on waiting_limit (due_at);
insert into duty (name) values ('bounded_waiting');

-- Who did what (J5). Written before the deed with no result, so that no crash leaves a deed without its row.
create table audit (
    id       bigint generated always as identity primary key,
    at       timestamptz not null default clock_timestamp(),
    role     text not null,
    actor    text not null, -- the key's name and number
    tenant   int, -- whose rows were touched; null: the operator's own
    action   text not null,
    target   text not null default '',
    result   text not null default 'begun',
    before   jsonb,
    after    jsonb
);
create index audit_tenant on audit (tenant, id);

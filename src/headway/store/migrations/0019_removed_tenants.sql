-- Tenants that were removed. The row stays: history and audit go on to show the name, and nobody else can be called so.
alter table tenant add column removed_at timestamptz;
-- Nothing of it is left that would have to be cancelled or dropped.
alter table tenant add column swept_at timestamptz;
alter table tenant add constraint tenant_swept_was_removed check (swept_at is null or removed_at is not null);
create index tenant_removed on tenant (removed_at) where removed_at is not null and swept_at is null;

-- name: changes
-- Tenants whose subscription changed since, with a margin for transactions that committed late.
select id, name, subscription::text as subscription, changed_at from tenant where changed_at > $1::timestamptz - interval '30 seconds';

-- name: tier_changes
select tenant, name, resources::text as resources, changed_at from tier where changed_at > $1::timestamptz - interval '30 seconds';

-- Tasks that made room for others.

-- name: of
-- For which task this one is out of the way now; null when it is not.
select beneficiary from preemption where task = $1 and resumed_at is null;

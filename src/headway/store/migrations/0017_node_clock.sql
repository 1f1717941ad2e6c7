-- How far a node's clock is ahead of the database's, as its last heartbeat showed. Headway's own times are moved; tasks see the node's (J3).
alter table node add column clock_ms bigint not null default 0;

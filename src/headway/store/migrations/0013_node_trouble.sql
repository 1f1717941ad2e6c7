-- Why a node that lives takes no new tasks, in its own words; empty when it is well (I1).
alter table node add column trouble text not null default '';

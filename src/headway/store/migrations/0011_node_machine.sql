-- Which machine speaks under a node's name: a second one with the same name is refused while the first lives (I1 F2).
alter table node add column machine text not null default '';

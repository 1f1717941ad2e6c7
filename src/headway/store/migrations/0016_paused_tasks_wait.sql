-- Tasks that somebody paused before a node had them: they count as waiting (E6), and only they pay for this.
create index task_put_aside on task (tenant, shape) where state = 5 and node is null;

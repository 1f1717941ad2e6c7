-- What an attempt read from storage and wrote to it. Beside `attempt` and the histories, because only programs of their own process have
-- these figures and the rows of functions, by far the most, stay narrow.
create table attempt_io (
    task          bigint not null,
    read_bytes    bigint not null,
    written_bytes bigint not null,
    attempt       int not null,
    primary key (task, attempt)
) partition by range (task);

-- name: settle
-- What we rely on ($1, $2), whatever was set for our role, the database or the server. What this version does not know is left out.
select set_config(wanted.name, wanted.value, false)
from unnest($1::text[], $2::text[]) as wanted (name, value)
where current_setting(wanted.name, true) is not null;

-- name: backend
-- The process at the other end: behind a pooler that gives every transaction another session, two clients meet the same one. With the start of
-- its server: of several hosts two may have processes of one number.
select pg_backend_pid() as process, pg_postmaster_start_time() as of_server;

-- name: about
-- What a database is, before anything is made in it.
select current_setting('server_version_num')::int as number, current_setting('server_version') as version,
       pg_encoding_to_char(encoding) as encoding, datname as name, to_regclass('headway.migration') is not null as used
from pg_database where datname = current_database();

-- name: strangers
-- What somebody else has made under the name of our schema. It is ours when its table of migrations is.
select c.relname
from pg_class c
where c.relnamespace = to_regnamespace('headway') and c.relkind in ('r', 'p', 'v', 'm', 'f')
  and not exists (
      select from pg_attribute a
      where a.attrelid = to_regclass('headway.migration') and a.attname = 'hash' and not a.attisdropped
  )
order by c.relname;

-- name: durability
-- Of the settings that decide whether an acknowledged task can be lost, those that are off.
select name from pg_settings
where name in ('fsync', 'full_page_writes', 'synchronous_commit') and setting = 'off' order by name;

-- name: connections
-- How many this role, this database and this server allow; -1: no limit.
select r.rolname as role, r.rolconnlimit as of_role, d.datconnlimit as of_database,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int as of_server
from pg_roles r, pg_database d
where r.rolname = session_user and d.datname = current_database();

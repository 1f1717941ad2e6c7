-- A vacuum that found nothing left cut the hot table down to no page at all. Statements planned then took it for empty for ever: each lease
-- and each report read all of the next ten thousand tasks (see tests/store/test_plans.py). A table with pages is read by its key.
alter table task set (vacuum_truncate = off);

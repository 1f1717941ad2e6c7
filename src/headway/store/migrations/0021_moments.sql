-- Times of a report, packed by the server itself like the lists of 0018: PostgreSQL no longer multiplies an interval for each of them.
create domain moments as timestamptz[];

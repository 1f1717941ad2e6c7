-- Lists that the hot statements are given, in types of their own: a server sends them as bytes that it packed itself (store/arrays.py).
create domain longs as bigint[];
create domain ints as int[];
create domain byte_strings as bytea[];

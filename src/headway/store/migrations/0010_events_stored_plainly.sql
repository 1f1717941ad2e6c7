-- Lists of ids do not compress: trying to costs more than the bytes it would save.
alter table event alter column tasks set storage external;

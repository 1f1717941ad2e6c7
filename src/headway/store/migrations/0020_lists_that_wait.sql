-- Why a list could not become tasks at the last look, in the words of the limiter, and when its rate allows it (explain tells it).
alter table fanout add column waits text;
alter table fanout add column waits_until timestamptz;

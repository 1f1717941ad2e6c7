"""The lifecycle as a trigger of the test database, made from the one table: every test is then a test of the lifecycle.

Final states leave `headway.task` by a delete, so what it guards are rows that come in and rows that move. It also holds
the fence: an attempt number never goes back, and a lease is what raises it.
"""

from __future__ import annotations

from headway.domain.lifecycle import TRANSITIONS, WAITING, Event, State

# A task may be admitted straight onto a node (one commit instead of two); then it comes in as leased.
COME_IN = (*WAITING, State.LEASED)


def moves() -> set[tuple[State, State]]:
    """Every (from, to) inside the hot table that some event allows."""
    return {
        (source, target)
        for event, rule in TRANSITIONS.items()
        if event not in (Event.REVIVE, Event.RESTORE)  # what had ended comes back by an insert
        for source in rule.sources
        for target in rule.targets
        if not target.final and target is not source
    }


def sql() -> str:
    allowed = ", ".join(f"({int(source)}, {int(target)})" for source, target in sorted(moves()))
    come_in = ", ".join(str(int(state)) for state in COME_IN)
    return f"""
create function headway.check_lifecycle() returns trigger language plpgsql as $body$
begin
    if tg_op = 'INSERT' then
        if new.state not in ({come_in}) then
            raise exception 'lifecycle: task % comes in with state %', new.id, new.state;
        end if;
        return new;
    end if;
    if new.id <> old.id then
        raise exception 'lifecycle: task % becomes task %', old.id, new.id;
    end if;
    if new.state <> old.state and (old.state, new.state) not in ({allowed}) then
        raise exception 'lifecycle: task % goes from state % to state %', old.id, old.state, new.state;
    end if;
    if new.attempt < old.attempt then
        raise exception 'lifecycle: the fence of task % goes back from % to %', old.id, old.attempt, new.attempt;
    end if;
    if new.state = {int(State.LEASED)} and old.state <> new.state and new.attempt = old.attempt then
        raise exception 'lifecycle: task % is leased again under the same attempt %', old.id, old.attempt;
    end if;
    return new;
end
$body$;
create trigger check_lifecycle before insert or update on headway.task
    for each row execute function headway.check_lifecycle();
"""
